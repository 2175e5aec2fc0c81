"""Files of a node: found and brought in parts, and nothing that a node says is believed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.cluster.files import bring
from jupyter_sky.cluster.files.bring import Download, place_in
from jupyter_sky.errors import SkyError
from jupyter_sky.node.files import reader
from jupyter_sky.notebook.project.files import matches
from tests.notebook.conftest import Notebook, notebook

__all__ = ["notebook"]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    (folder / "outputs" / "deep").mkdir(parents=True)
    for name in ("a.png", "b.png", "deep/c.png"):
        (folder / "outputs" / name).write_text(name)
    (folder / "empty").touch()
    (folder / ".sky-sent-x.json").write_text("{}")
    return folder


def test_patterns_stand_for_files(there: Path) -> None:
    def names(*patterns: str) -> list[str]:
        return [each["name"] for each in reader.find(there, patterns, 10)["files"]]

    assert names("outputs/*.png") == ["outputs/a.png", "outputs/b.png"]
    assert names("outputs") == ["outputs/a.png", "outputs/b.png", "outputs/deep/c.png"]
    assert names("outputs/**/c.png", "empty") == ["outputs/deep/c.png", "empty"]
    # As a shell does, a pattern leaves hidden files out, and a folder as a whole has them.
    for name in (".env", "outputs/.env", "outputs/deep/.env"):
        (there / name).touch()
    assert names("*") == ["empty", *names("outputs")]
    assert names("outputs/*") == [*names("outputs/*.png"), *names("outputs/deep")]
    assert names("**") == ["empty", *names("outputs/*.png"), "outputs/deep/c.png"]
    assert "outputs/deep/.env" in names("outputs/deep")
    assert names(".e*") == [".env"]
    for name in (".env", "outputs/.env", "outputs/deep/.env"):
        (there / name).unlink()
    assert names(str(there / "empty")) == ["empty"]
    (there.parent / "elsewhere").touch()
    assert names("../elsewhere") == ["elsewhere"]
    assert names(".") == ["there/empty", *(f"there/{each}" for each in names("outputs"))]
    # As of checkpoints: `last` is content, what leads out or back to where it is in is none.
    links = {"last": "deep", "deep/back": "..", "deep/other": "../last", "out": there.parent}
    (there.parent / "data").mkdir()
    links["data"] = there.parent / "data"
    for link, target in links.items():
        (there / "outputs" / link).symlink_to(target)
    assert names("outputs/l*", "outputs/deep") == ["outputs/last/c.png", "outputs/deep/c.png"]
    whole = ["outputs/a.png", "outputs/b.png", "outputs/deep/c.png", "outputs/last/c.png"]
    assert names("outputs") == whole
    assert reader.find(there, ["outputs"], 10)["links_out"] == ["outputs/data"]
    assert reader.find(there, ["outputs/last"], 10)["links_out"] == []
    for link in links:
        (there / "outputs" / link).unlink()
    assert reader.find(there, ["nothing*", "empty"], 10)["missing"] == ["nothing*"]
    assert reader.find(there, ["outputs"], 2)["has_more"]
    assert reader.read([(str(there / "empty"), 0, 5), (str(there / "no"), 0, 5)]) == [b"", None]


def test_what_is_removed_meanwhile_is_left_out(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a program does that writes its results under another name first.
    entries = reader._files

    def removing(place: Path) -> Iterator[Path]:
        for path in entries(place):
            if path.name == "a.png":
                path.unlink()
            yield path

    monkeypatch.setattr(reader, "_files", removing)
    found = reader.find(there, ["outputs"], 10)["files"]
    assert [each["name"] for each in found] == ["outputs/b.png", "outputs/deep/c.png"]


def test_a_file_that_the_system_makes_up_is_whole(tmp_path: Path) -> None:
    names = ["/proc/version", "/sys/kernel/uevent_seqnum"]
    found = reader.find(tmp_path, [each for each in names if Path(each).exists()], 10)["files"]
    assert found
    for each in found:
        assert each["size"] == len(Path(each["path"]).read_bytes()) > 0
    [read] = reader.read([("/proc/kallsyms", 0, 1 << 17)])
    assert read == Path("/proc/kallsyms").read_bytes()[: 1 << 17]


def test_what_a_run_has_written(there: Path) -> None:
    for path in there.rglob("*"):
        os.utime(path, (1, 1))
    assert reader.written(there, 100 * 10**9) == []
    os.utime(there / "outputs" / "deep" / "c.png", (200, 200))
    os.utime(there / "empty", (200, 200))
    os.utime(there / ".sky-sent-x.json", (200, 200))
    assert reader.written(there, 100 * 10**9) == ["empty", "outputs/"]
    assert reader.written(there / "nowhere", 0) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../a",
        "a/../../b",
        "..",
        "a\0b",
        "link/a",
        "file",
        "out/inside",
        "b" * 999,
    ],
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "link").symlink_to("/tmp")
    (folder / "out").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "target")
    with pytest.raises(SkyError, match=r"which is none|nothing is written through it"):
        place_in(folder, name)
    assert place_in(folder, "outputs/a.png") == folder / "outputs" / "a.png"


def test_what_is_in_the_way_here_is_said(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SkyError, match=r"loop/a\.png cannot be written: Too many levels"):
        place_in(tmp_path, "loop/a.png")
    # Of a file in the way of a folder, more is said (`test_where_files_have_no_room_is_said`).
    (tmp_path / "file").touch()
    assert place_in(tmp_path, "file/a.png") == tmp_path / "file" / "a.png"


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("outputs/a.png", "outputs/*.png", True),
        ("outputs/a.png", "./outputs", True),
        ("outputs/deep/a.png", "outputs/**/*.png", True),
        ("a.png", "/data/*.png", True),
        ("out/deep/a.png", "~/out", True),
        ("elsewhere", "../elsewhere", True),
        ("~old/a.png", "/data/~old", True),
        ("~old/a.png", "./~old/*.png", True),
        ("outputs/a.png", "/data/run/outputs/*.png", True),
        ("there/a.png", ".", True),
        ("outputs/.hydra/config.yaml", "out*", True),
        ("outputs/.hydra/config.yaml", "outputs/.hydra", True),
        ("outputs/.hydra", "outputs/.h*", True),
        ("c.png", "**/c.png", True),
        ("a/b/c.png", "**", True),
        (".env", "*", False),
        (".ssh/authorized_keys", "*", False),
        (".git/hooks/pre-commit", "**", False),
        (".git/hooks/pre-commit", "**/pre-commit", False),
        ("outputs/.git/config", "outputs/*", False),
        ("outputs/.git/config", "outputs/**/config", False),
        ("outputs/setup.py", "outputs/**/*.png", False),
        (".ssh/authorized_keys", ".", False),
        (".ssh/authorized_keys", "~", False),
        (".bashrc", "../*", False),
        ("/".join(["a"] * 2000), "**/**/**/b", False),
        ("setup.py", "outputs/*.png", False),
        ("outputs", "outputs/*.png", False),
        (".git/hooks/pre-commit", "outputs", False),
        ("setup.py", "/data/*.png", False),
    ],
)
def test_only_what_was_asked_for_is_taken(name: str, pattern: str, expected: bool) -> None:
    assert matches(name, pattern) is expected


def test_a_file_goes_on_where_it_was_stopped(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("%%sky --nodes 1\npass")
    session = notebook.shell.find_line_magic("sky").__self__._session
    [cluster] = session.connected_clusters()
    content = os.urandom(5_000_001)
    source, folder = tmp_path / "large", tmp_path / "here"
    source.write_bytes(content)
    folder.mkdir()
    [file] = cluster.files.find(0, [str(source)])["files"]
    place = Download(file, place_in(folder, file["name"]))
    # What is there of the same version is not asked for again; of another one, it is no use.
    begun = bring._part(place)
    begun.write_bytes(bytes(1_000_000))
    begun.with_name(".large.0-5.sky-part").write_bytes(b"older")
    counts: list[int] = []
    cluster.files.bring(0, [place], counts.append)
    assert place.path.read_bytes() == bytes(1_000_000) + content[1_000_000:]
    assert counts[0] == 1_000_000 and sum(counts) == len(content)
    assert place.path.stat().st_mtime_ns == source.stat().st_mtime_ns
    # A file that changes meanwhile is not taken for what it was.
    source.write_bytes(content[:2_000_000])
    place.path.unlink()
    with pytest.raises(SkyError, match="large was removed or changed on node 0"):
        cluster.files.bring(0, [place], counts.append)
    assert not place.path.exists()
    # Nor is one that is replaced by another, of which the rest has come.
    source.write_bytes(content)
    [file] = cluster.files.find(0, [str(source)])["files"]
    place = Download(file, place.path)

    for size in (len(content), len(content) + 1):

        def replace(count: int, size: int = size) -> None:
            if count:  # some of it has come
                new = source.with_name("new")
                new.write_bytes(bytes(size))
                new.replace(source)

        with pytest.raises(SkyError, match="large was removed or changed on node 0"):
            cluster.files.bring(0, [place], replace)
        assert not place.path.exists()
        source.write_bytes(content)
        [file] = cluster.files.find(0, [str(source)])["files"]
        place = Download(file, place.path)
    # A log may grow.
    [file] = cluster.files.find(0, [str(source)])["files"]
    with source.open("ab") as log:
        log.write(b"another line")
    cluster.files.bring(0, [place := Download(file, place.path)], counts.append)
    assert place.path.stat().st_size == len(content)
    # Nobody may read here what nobody else may read there: on its own, or one of several.
    modes = {"key": 0o600, "closed/key": 0o644, "open": 0o755}
    for name in modes:
        (tmp_path / "closed").mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret")
        (tmp_path / name).chmod(modes[name])
    (tmp_path / "closed").chmod(0o700)
    patterns = [str(tmp_path / name) for name in ("key", "closed", "open")]
    places = [
        Download(file, place_in(folder, file["name"]))
        for file in cluster.files.find(0, patterns)["files"]
    ]
    cluster.files.bring(0, places, counts.append)
    brought = {name: (folder / name).stat().st_mode & 0o777 for name in modes}
    assert brought == {"key": 0o600, "closed/key": 0o600, "open": 0o755}
    (folder / "key").unlink()
    cluster.files.bring(0, places[:1], counts.append)
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    [file] = cluster.files.find(0, ["/proc/version"])["files"]
    cluster.files.bring(0, [Download(file, folder / "version")], counts.append)
    assert (folder / "version").read_bytes() == Path("/proc/version").read_bytes()
