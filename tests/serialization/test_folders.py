"""Folders that are sent: what is in them, what is left out, and what is refused."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import folders
from jupyter_sky.serialization.folders import FolderIndex, read_folder


def write(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_files_by_digest_and_links_inside(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/a.py", "lib/b.py")
    write(tmp_path, "empty", text="")
    (tmp_path / "run.sh").write_text("run")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "lib/link").symlink_to(tmp_path / "train.py")
    content = read_folder(tmp_path)
    files = content.folder["files"]
    assert sorted(files) == ["empty", "lib/a.py", "lib/b.py", "run.sh", "train.py"]
    assert files["run.sh"]["mode"] & 0o100
    assert not files["train.py"]["mode"] & 0o100
    assert content.folder["links"] == {"lib/link": "../train.py"}
    # Equal files are there once, and an empty one needs none.
    assert sorted(blob.tobytes() for blob in content.blobs.values()) == [b"run", b"x"]
    assert content.size == 6


def test_what_git_leaves_out_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, ".git/config", "a.pt", "keep.pt", "data/big", "project/train.py")
    write(tmp_path, "project/notes/a.log", "project/notes/b.txt", "project/__pycache__/c.pyc")
    write(tmp_path, "project/venv/pyvenv.cfg", "project/venv/lib/x.py", "project/x.pt")
    (tmp_path / ".gitignore").write_text("*.pt\n!keep.pt\n/data/\n")
    (tmp_path / "project/notes/.gitignore").write_text("*.log\n")
    (tmp_path / "plots/new").mkdir(parents=True)
    files = sorted(read_folder(tmp_path).folder["files"])
    notes = ["project/notes/.gitignore", "project/notes/b.txt"]
    assert files == [".gitignore", "keep.pt", *notes, "project/train.py"]
    assert read_folder(tmp_path).folder["empty"] == ["plots/new/"]
    # The rules of the repository hold for a folder in it.
    assert sorted(read_folder(tmp_path / "project").folder["files"]) == [
        "notes/.gitignore",
        "notes/b.txt",
        "train.py",
    ]


def test_a_folder_that_git_leaves_out_as_a_whole_is_sent_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, "data/a.csv", "data/sub/b.csv", "data/.gitkeep", "project/data/c.pt")
    for rules in ("data/\n", "data/*\n!data/.gitkeep\n", "/data\n*.csv\n", "data/**\n"):
        (tmp_path / ".gitignore").write_text(rules)
        sent = [".gitkeep", "a.csv", "sub/b.csv"]
        assert sorted(read_folder(tmp_path / "data").folder["files"]) == sent
        assert "sub/b.csv" not in read_folder(tmp_path).folder["files"]
        assert list(read_folder(tmp_path / "data/sub").folder["files"]) == ["b.csv"]
    # A list of what is taken in leaves no folder out that it takes in.
    (tmp_path / ".gitignore").write_text("*\n!*/\n!*.csv\n")
    assert sorted(read_folder(tmp_path / "data").folder["files"]) == ["a.csv", "sub/b.csv"]
    assert not read_folder(tmp_path / "project").folder["files"]


def test_lines_that_are_no_rules_have_no_effect(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.pt", "Icon\r", "c")
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbf*.pt\r\n!\r\n/\nIcon[\r]\nc\\\n")
    assert sorted(read_folder(tmp_path).folder["files"]) == [".gitignore", "a.py", "c"]


# Not those that count bytes, as `?` does in Git, or name a class, as `[[:alpha:]]`.
PATTERNS = (
    *("", " ", "*", "foo", "/foo", "dir/", "foo/", "dir/foo", "dir/*", "dir/**", "**/foo"),
    *("a/**/b", ".*", "dir/**/foo", "/**/x\\[1\\]", "x[1]", "[]a]", "[a-]", "[a", "f**o"),
    *("\\#c", "#c", "\\!d", "t\\ ", "t  ", "q\\*", "!", "/", "\\", "*\\", "*.t[x]t"),
    *("Icon\r", "Icon[\r]", "!foo", "!dir/foo", "!*/"),
)


def test_rules_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    names = ("a", "b c", "foo", "foo.txt", "x[1]", "#c", "!d", "t ", "q*", "Icon\r", ".h")
    write(tmp_path, *(at + name for at in ("", "dir/", "dir/sub/", "a b/", "[/") for name in names))
    chance = random.Random(5)
    lists = [["*.txt", "", "# but", "!foo.txt"], *([each] for each in PATTERNS)]
    lists += [chance.sample(PATTERNS, 4) for _ in range(60)]
    listing = ["git", "-C", str(tmp_path), "ls-files", "-z", "--others"]
    for lines in lists:
        (tmp_path / ".gitignore").write_bytes("".join(each + "\n" for each in lines).encode())
        ended = subprocess.run(
            [*listing, "--exclude-per-directory=.gitignore"], capture_output=True, check=True
        )
        there = {os.fsdecode(each) for each in ended.stdout.split(b"\0") if each}
        assert set(read_folder(tmp_path).folder["files"]) == there, lines


def test_skyignore_stands_in_for_gitignore(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "weights.pt", "data/big")
    (tmp_path / ".gitignore").write_text("*.pt\n")
    (tmp_path / ".skyignore").write_text("/data\n.*ignore\n")
    assert sorted(read_folder(tmp_path).folder["files"]) == ["train.py", "weights.pt"]


def test_a_link_that_leads_to_itself_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("latest")
    assert read_folder(tmp_path).folder["links"] == {"latest": "latest"}
    assert read_folder(tmp_path / "latest").folder["links"] == {"latest": "latest"}


def test_a_link_that_is_named_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "step-300.pt").write_bytes(b"weights")
    link = tmp_path / "runs" / "latest.pt"
    link.symlink_to("../step-300.pt")
    for name in (None, "best.pt"):
        folder = read_folder(link, file_name=name).folder
        assert folder["links"] == {}
        assert [(path, file["size"]) for path, file in folder["files"].items()] == [
            (name or "latest.pt", 7)
        ]


def test_a_link_to_nothing_is_sent_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    links = {"latest": "checkpoints/9", "old": "../gone/x", "scratch": "/scratch/me/gone"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    assert read_folder(tmp_path).folder["links"] == links


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "project/train.py", "elsewhere/images")
    project = tmp_path / "project"
    (project / "data").symlink_to("../elsewhere")
    with pytest.raises(UsageError, match=r"data leads out of .*, which is not sent: copy what"):
        read_folder(project)
    (project / ".skyignore").write_text("data\n.skyignore\n")
    assert list(read_folder(project).folder["files"]) == ["train.py"]


def test_what_is_too_large_is_named(tmp_path: Path) -> None:
    write(tmp_path, "data/a", "data/b", text="x" * 1000)
    write(tmp_path, "train.py")
    too_large = (
        r"2 kB in 3 files, more than the 1 kB that are sent by themselves, in data \(2 kB in 2 "
        r"files\) and train.py \(1 B in 1 file\): leave out"
    )
    with pytest.raises(UsageError, match=too_large):
        read_folder(tmp_path, limit=1000)


def test_too_many_files_are_named_with_how_many_may_be_sent(tmp_path: Path) -> None:
    write(tmp_path, *(f"data/{number}" for number in range(20_000)), "train.py")
    with pytest.raises(UsageError, match=r"in 20,001 files, more than the 20,000 files that are"):
        read_folder(tmp_path, limit=1_000_000_000)


def test_a_single_file(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    content = read_folder(tmp_path / "a", "a", "~")
    assert list(content.folder["files"]) == ["a"]
    assert content.folder["target"] == "~"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match="is a pipe, socket or device: only files and folders"):
            read_folder(source)


def test_a_home_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="is not sent as a whole: go to the folder of the project"):
        read_folder(tmp_path)


def test_a_file_that_is_cut_while_it_is_sent_ends_no_process(tmp_path: Path) -> None:
    # As of a checkpoint that is written anew. What is mapped and cut off ends who reads it.
    (tmp_path / "model").write_bytes(os.urandom(5_000_000))
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from jupyter_sky.serialization.folders import read_folder\n"
        "content = read_folder(Path(sys.argv[1]))\n"
        "os.truncate(sys.argv[1] + '/model', 1000)\n"
        "print([bytes(each) for each in content.blobs.values()])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert "model is changed while it is sent: run this again" in ended.stderr
    assert ended.returncode == 1


def test_a_log_that_grows_is_sent_as_it_was(tmp_path: Path) -> None:
    written = os.urandom(2_000_000)
    (tmp_path / "log").write_bytes(written)
    content = read_folder(tmp_path)
    with (tmp_path / "log").open("ab") as log:
        log.write(b"more")
    assert [bytes(each) for each in content.blobs.values()] == [written]


def test_what_is_as_it_was_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    clock = [time.time_ns()]
    monkeypatch.setattr(time, "time_ns", lambda: clock[0])
    opened: list[str] = []
    usual = folders._read

    def read(path: Path) -> memoryview:
        opened.append(path.name)
        return usual(path)

    monkeypatch.setattr(folders, "_read", read)
    index = FolderIndex()

    def look() -> dict[str, str]:
        opened.clear()
        content = read_folder(tmp_path, index=index)
        return {name: file["blob"] for name, file in content.folder["files"].items()}

    first = look()
    assert look() == first
    assert opened == ["a", "b", "c"]  # changed a moment ago, as they may be again
    clock[0] += 10 * 10**9
    assert look() == first
    assert opened == ["a", "b", "c"]
    assert look() == first
    assert opened == []
    # Neither the same size nor the same time hides that another text is there.
    status = (tmp_path / "b").stat()
    (tmp_path / "b").write_text("x")
    os.utime(tmp_path / "b", ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = look()
    assert (opened, changed["a"], changed["b"] == first["b"]) == (["b"], first["a"], False)
    # What is sent is read then, and is what was said.
    content = read_folder(tmp_path, index=index)
    assert {bytes(each) for each in content.blobs.values()} == {b"a", b"x", b"c"}
    content = read_folder(tmp_path, index=index)
    (tmp_path / "c").write_text("y")
    with pytest.raises(UsageError, match=r"c is changed while it is sent"):
        _ = content.blobs


def test_a_file_that_vanishes_while_it_is_sent_is_said(tmp_path: Path) -> None:
    class Removing(FolderIndex):
        def find(self, path: str, status: os.stat_result) -> str | None:
            Path(path).unlink()
            return None

    for size in (1, 2 * 1024 * 1024):
        write(tmp_path, "log", text="x" * size)
        with pytest.raises(UsageError, match=r"/log is changed while it is sent: run this again"):
            read_folder(tmp_path, index=Removing())


@pytest.mark.parametrize("name", ["mine/secret", "mine/", "mine/.gitignore"])
def test_what_cannot_be_read_is_said_with_what_to_do(name: str) -> None:
    with TemporaryDirectory() as folder, user_of_few_rights(Path(folder)):
        write(Path(folder), "train.py", "mine/secret", "mine/.gitignore")
        Path(folder, name).chmod(0)
        try:
            with pytest.raises(UsageError) as raised:
                read_folder(Path(folder))
        finally:
            Path(folder, name).chmod(0o700)
    path = f"{folder}/{name}".rstrip("/")
    assert str(raised.value) == (
        f"{path} cannot be read (Permission denied): make it readable, or leave it out with a line "
        "in .skyignore."
    )


@contextlib.contextmanager
def user_of_few_rights(folder: Path) -> Iterator[None]:
    """Act as another user where root, who may read all, runs the tests; the folder is theirs."""
    if os.geteuid():
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
