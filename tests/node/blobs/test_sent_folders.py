"""Folders written on a node: what is written, what is kept, and what is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.node.blobs import sent_folders
from jupyter_sky.node.blobs.sent_folders import write_folder
from jupyter_sky.serialization import folders
from jupyter_sky.serialization.folders import read_folder


class Sender:
    """A folder here, and the node's."""

    def __init__(self, folder: Path) -> None:
        self.here, self.store, self.node = (folder / name for name in ("here", "store", "node"))
        for each in (self.here, self.store, self.node):
            each.mkdir()

    def write(self, path: str, text: str) -> None:
        (self.here / path).parent.mkdir(parents=True, exist_ok=True)
        (self.here / path).write_text(text)

    def send(self, target: str = "work", force: bool = False) -> Path:
        content = read_folder(self.here, target=target)
        for key, blob in content.blobs.items():
            (self.store / key).write_bytes(blob)
        return write_folder({**content.folder, "force": force}, self.node, self.store)


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    return Sender(tmp_path)


def test_the_node_has_what_was_sent(sender: Sender) -> None:
    sender.write("train.py", "1")
    sender.write("lib/empty", "")
    sender.write("run.sh", "go")
    (sender.here / "run.sh").chmod(0o755)
    (sender.here / "lib/link").symlink_to("../train.py")
    root = sender.send()
    assert (root / "train.py").read_text() == (root / "lib/link").read_text() == "1"
    assert (root / "lib/empty").read_text() == ""
    assert (root / "run.sh").stat().st_mode & 0o100
    assert not (root / "train.py").stat().st_mode & 0o100
    assert not list(root.rglob("*.part"))


def test_a_program_that_lists_its_data_finds_no_file_of_ours(sender: Sender) -> None:
    def listed(target: str) -> list[str]:
        return sorted(each.name for each in sender.send(target).iterdir())

    sender.write("a.png", "a")
    assert listed("work/data") == ["a.png"]
    (sender.here / "a.png").rename(sender.here / "b.png")
    assert listed("work/data") == ["b.png"]
    # A folder of the same name elsewhere is another one.
    assert listed("work/more/data") == ["b.png"]
    (sender.here / "b.png").rename(sender.here / "c.png")
    assert listed("work/data") == ["c.png"]
    assert (sender.node / "work/more/data/b.png").exists()


def test_what_was_sent_outside_of_the_working_folder_is_known_to_the_next_cluster(
    sender: Sender, tmp_path: Path
) -> None:
    sender.write("a", "1")
    sender.send(f"{tmp_path / 'scratch'}")
    (sender.here / "a").rename(sender.here / "b")
    sender.node = tmp_path / "other"
    sender.node.mkdir()
    root = sender.send(f"{tmp_path / 'scratch'}")
    assert not (root / "a").exists()
    assert (root / "b").read_text() == "1"
    assert not list(sender.node.iterdir())


def test_only_what_changed_is_written_and_what_is_gone_goes(sender: Sender) -> None:
    sender.write("train.py", "1")
    sender.write("lib/old.py", "old")
    root = sender.send()
    kept = (root / "train.py").stat().st_ino
    (root / "checkpoint").write_text("of the script")
    shutil.rmtree(sender.here / "lib")
    sender.write("new.py", "new")
    sender.send()
    assert (root / "train.py").stat().st_ino == kept
    assert not (root / "lib").exists()
    assert (root / "new.py").read_text() == "new"
    assert (root / "checkpoint").read_text() == "of the script"


def test_a_folder_into_which_the_script_will_write_is_there_and_what_it_writes_stays(
    sender: Sender,
) -> None:
    (sender.here / "runs/1").mkdir(parents=True)
    sender.write("plots/old.png", "old")
    root = sender.send()
    (root / "runs/1/best.pt").write_text("of the script")
    (sender.here / "plots/old.png").unlink()
    (sender.here / "cache").mkdir()
    sender.send()
    assert (root / "plots").is_dir()
    assert (root / "cache").is_dir()
    shutil.rmtree(sender.here / "runs")
    shutil.rmtree(sender.here / "cache")
    sender.send()
    assert (root / "runs/1/best.pt").read_text() == "of the script"
    assert not (root / "cache").exists()


def test_what_is_of_another_kind_now_takes_the_place(sender: Sender) -> None:
    for path in ("data", "plots/a", "real/a", "table"):
        sender.write(path, path)
    (sender.here / "latest").symlink_to("real")
    root = sender.send()
    for path in ("data", "plots/a", "latest", "table"):
        (sender.here / path).unlink()
    (sender.here / "plots").rmdir()
    sender.write("data/part", "file to folder")
    sender.write("plots", "folder to file")
    sender.write("latest/a", "link to folder")
    (sender.here / "table").symlink_to("plots")
    sender.send()
    assert (root / "data/part").read_text() == "file to folder"
    assert (root / "plots").read_text() == (root / "table").read_text() == "folder to file"
    assert (root / "latest/a").read_text() == "link to folder"
    assert (root / "real/a").read_text() == "real/a"
    assert str((root / "table").readlink()) == "plots"


def test_a_link_that_is_gone_goes(sender: Sender) -> None:
    sender.write("a", "1")
    for name in ("gone", "other"):
        (sender.here / name).symlink_to("a")
    root = sender.send()
    (root / "other").unlink()
    (root / "other").symlink_to("elsewhere")  # of the user's code, and stays
    for name in ("gone", "other"):
        (sender.here / name).unlink()
    sender.send()
    assert not (root / "gone").is_symlink()
    assert str((root / "other").readlink()) == "elsewhere"


def test_a_file_of_the_node_in_the_place_of_a_folder_is_not_lost(sender: Sender) -> None:
    (sender.node / "work").mkdir()
    (sender.node / "work/data").write_text("of the node")
    sender.write("data/deep/a", "1")
    with pytest.raises(SkyError, match=r"^data is to be sent, but is on this node: "):
        sender.send()
    assert (sender.node / "work/data").read_text() == "of the node"


def test_a_file_that_becomes_executable(sender: Sender) -> None:
    sender.write("run.sh", "go")
    root = sender.send()
    (sender.here / "run.sh").chmod(0o755)
    sender.send()
    assert (root / "run.sh").stat().st_mode & 0o100
    (sender.here / "run.sh").chmod(0o644)
    (root / "run.sh").chmod(0o755)  # by the user's code, maybe
    sender.send()
    assert (root / "run.sh").stat().st_mode & 0o100


def test_who_may_not_read_a_file_may_not_read_its_copy(sender: Sender) -> None:
    for path in (".env", "keys/id", "train.py", "team/plan"):
        sender.write(path, "1")
        (sender.here / path).chmod(0o644)
    (sender.here / ".env").chmod(0o600)
    (sender.here / "keys").chmod(0o700)  # and the file in it is for everybody who gets there
    (sender.here / "team").chmod(0o750)
    root = sender.send()

    def mode(path: str) -> int:
        return (root / path).stat().st_mode & 0o777

    assert [mode(path) for path in (".env", "keys/id", "team/plan")] == [0o600, 0o600, 0o640]
    assert mode("train.py") == 0o644
    (sender.here / "train.py").chmod(0o600)
    sender.send()
    assert mode("train.py") == 0o600
    # What the user's umask takes away here is not given back.
    before = os.umask(0o077)
    try:
        sender.write("later.py", "1")
        (sender.here / "later.py").chmod(0o755)
        sender.send()
    finally:
        os.umask(before)
    assert mode("later.py") == 0o700


def test_what_a_script_wrote_over_a_file_is_not_lost(sender: Sender) -> None:
    sender.write("state", "first")
    root = sender.send()
    (root / "state").write_text("of the script")
    sender.send()
    assert (root / "state").read_text() == "of the script"
    sender.write("state", "changed here too")
    with pytest.raises(SkyError, match="state is to be sent, but was changed on this node since"):
        sender.send()
    assert (root / "state").read_text() == "of the script"
    (root / "state").unlink()
    assert (sender.send() / "state").read_text() == "changed here too"
    (root / "state").write_text("of the script")
    assert (sender.send(force=True) / "state").read_text() == "changed here too"


def test_what_was_not_sent_is_not_overwritten(sender: Sender) -> None:
    (sender.node / "work").mkdir()
    (sender.node / "work/train.py").write_text("another")
    sender.write("train.py", "mine")
    with pytest.raises(SkyError, match=r"train.py is to be sent, but is on this node: .*skyignore"):
        sender.send()
    (sender.node / "work/train.py").write_text("mine")
    sender.send()


def test_what_was_cut_off_is_made_good(sender: Sender) -> None:
    sender.write("a", "1")
    root = sender.send()
    # The file of the next version came, and the record of it did not.
    sender.write("a", "2")
    (root / "a").write_text("2")
    sender.send()
    sender.write("a", "3")
    assert (sender.send() / "a").read_text() == "3"


def test_nodes_that_share_a_folder_write_it_one_after_the_other(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, copied = fcntl.flock, list[object]()
    both = threading.Barrier(2)

    def lock_files(descriptor: int, how: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # that of a folder is of one node on NFS
            lock(descriptor, how)

    def copy(source: object, target: object) -> None:
        copied.append(target)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # longer than the other takes that writes at the same time
        copyfile(source, target)

    monkeypatch.setattr(sent_folders.fcntl, "flock", lock_files)
    copyfile = shutil.copyfile
    monkeypatch.setattr(sent_folders.shutil, "copyfile", copy)
    sender.write("train.py", "1")
    with ThreadPoolExecutor(2) as nodes:
        roots = [each.result() for each in [nodes.submit(sender.send) for _ in range(2)]]
    assert (roots[0] / "train.py").read_text() == "1"
    assert len(copied) == 1  # the other finds what was sent


def test_what_is_sent_where_no_locks_are(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(sent_folders.fcntl, "flock", refuse)
    sender.write("train.py", "1")
    assert (sender.send() / "train.py").read_text() == "1"


def test_nothing_is_written_outside(sender: Sender, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (sender.node / "work").mkdir()
    (sender.node / "work/lib").symlink_to(tmp_path / "elsewhere")
    sender.write("lib/a", "1")
    with pytest.raises(SkyError, match="leads out of"):
        sender.send()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send at most 10 bytes at once."""
    monkeypatch.setattr(folders, "PORTION", 10)


class Parts(Sender):
    """Sends a folder in portions, each when the one before it was written."""

    def send_parts(self, here: dict[str, int] | None = None, most: int = 99) -> list[list[str]]:
        """Send so many portions, and return which files each has brought."""
        brought = []
        for portion in islice(read_folder(self.here, target="work").portions(here or {}), most):
            for each in self.store.iterdir():
                each.unlink()  # what a portion has brought is not kept
            for key, blob in portion.blobs.items():
                assert blob.nbytes <= 10
                (self.store / key).write_bytes(blob)
            write_folder(portion.folder, self.node, self.store)
            brought.append(portion.folder["only"])
        return brought

    @property
    def texts(self) -> dict[str, str]:
        work = self.node / "work"
        files = [each for each in work.rglob("*") if each.is_file()]
        return {each.relative_to(work).as_posix(): each.read_text() for each in files}


@pytest.fixture
def parts(tmp_path: Path, portions: None) -> Parts:
    return Parts(tmp_path)


def test_a_large_folder_comes_in_portions(parts: Parts) -> None:
    parts.write("a", "aaaaaa")
    parts.write("b", "bbbbbb")
    parts.write("large", "0123456789" * 2 + "end")
    parts.write("none", "")
    (parts.here / "large").chmod(0o755)
    (parts.here / "link").symlink_to("large")
    assert parts.send_parts() == [["a"], ["large"], ["large"], ["large"], ["b", "none"]]
    root = parts.node / "work"
    assert parts.texts == {
        "a": "aaaaaa", "b": "bbbbbb", "large": "0123456789" * 2 + "end", "none": "",
        "link": "0123456789" * 2 + "end",
    }  # fmt: skip
    assert (root / "large").stat().st_mode & 0o100
    # What is there already does not come again, and what is gone goes.
    (parts.here / "b").unlink()
    assert parts.send_parts({"a": 6, "large": 23}) == [["none"]]
    assert set(parts.texts) == {"a", "large", "none", "link"}


def test_a_large_file_goes_on_where_it_broke_off(parts: Parts) -> None:
    parts.write("large", "0123456789" * 3)
    assert parts.send_parts(most=2) == [["large"], ["large"]]
    [name] = parts.texts
    assert name.startswith(".large.") and parts.texts[name] == "0123456789" * 2
    with (parts.node / "work" / name).open("a") as file:
        file.write("01")  # of a part that was being written
    assert parts.send_parts({"large": 22}) == [["large"], []]
    assert parts.texts == {"large": "0123456789" * 3}


def test_of_a_file_that_is_another_now_nothing_old_is_left(parts: Parts) -> None:
    parts.write("large", "0123456789" * 3)
    parts.send_parts(most=1)
    parts.write("large", "9876543210" * 3)
    parts.send_parts()
    assert parts.texts == {"large": "9876543210" * 3}


def test_a_part_that_is_missing_is_said(parts: Parts) -> None:
    parts.write("large", "0123456789" * 3)
    with pytest.raises(SkyError, match="of .*large a part is missing on this node: send it again"):
        parts.send_parts({"large": 10})


def test_a_large_file_does_not_replace_what_was_not_sent(parts: Parts) -> None:
    parts.write("large", "0123456789" * 3)
    (parts.node / "work").mkdir()
    (parts.node / "work" / "large").write_text("theirs")
    with pytest.raises(SkyError, match="large is to be sent, but is on this node"):
        parts.send_parts()
    (parts.node / "work" / "large").write_text("0123456789" * 3)
    parts.send_parts()
    assert parts.texts == {"large": "0123456789" * 3}


def test_a_file_that_changes_while_it_is_sent_is_refused(parts: Parts) -> None:
    parts.write("large", "0123456789" * 3)
    sending = read_folder(parts.here).portions({})
    next(sending)
    parts.write("large", "9876543210" * 3 + "more")
    with pytest.raises(UsageError, match="large is changed while it is sent: run this again"):
        next(sending)


def test_a_full_disk_is_said_of_the_folder(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    sender.write("data/big", "1")
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(SkyError) as caught:
        sender.send()
    place = sender.node / "work" / "data"
    assert str(caught.value) == f"no room is left for {place} on this node: free some there."
