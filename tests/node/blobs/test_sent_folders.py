"""Folders laid down on a node: what is written, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.node.blobs.sent_folders import lay_down
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

    def send(self, target: str = "work") -> Path:
        content = read_folder(self.here, target=target)
        for key, blob in content.blobs.items():
            (self.store / key).write_bytes(blob)
        return lay_down(content.folder, self.node, self.store)


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


def test_only_what_changed_is_written_and_what_is_gone_goes(sender: Sender) -> None:
    sender.write("train.py", "1")
    sender.write("lib/old.py", "old")
    root = sender.send()
    kept = (root / "train.py").stat().st_ino
    (root / "checkpoint").write_text("of the script")
    (sender.here / "lib/old.py").unlink()
    sender.write("new.py", "new")
    sender.send()
    assert (root / "train.py").stat().st_ino == kept
    assert not (root / "lib").exists()
    assert (root / "new.py").read_text() == "new"
    assert (root / "checkpoint").read_text() == "of the script"


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


def test_nothing_is_written_outside(sender: Sender, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (sender.node / "work").mkdir()
    (sender.node / "work/lib").symlink_to(tmp_path / "elsewhere")
    sender.write("lib/a", "1")
    with pytest.raises(SkyError, match="leads out of"):
        sender.send()
    assert not list((tmp_path / "elsewhere").iterdir())
