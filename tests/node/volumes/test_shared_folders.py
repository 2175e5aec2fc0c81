"""A folder that several nodes see, as a volume: what it has, and how it is written."""

from __future__ import annotations

import os
from pathlib import Path

from tests.node.volumes.conftest import Keeper


def test_links_stand_for_what_they_lead_to(keeper: Keeper, tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    (shared / "sub").mkdir(parents=True)
    other.mkdir()
    (shared / "a").write_text("first")
    (other / "b").write_text("second")
    (shared / "latest").symlink_to("a")
    (shared / "sub" / "data").symlink_to(other)
    (shared / "sub" / "back").symlink_to(shared)
    (shared / "dangling").symlink_to("nowhere")
    os.mkfifo(shared / "pipe")
    assert keeper.mount(f"file://{shared}", options={}, token=None) == ""
    files = {path for path in keeper.data.rglob("*") if path.is_file()}
    assert {path.relative_to(keeper.data).as_posix(): path.read_text() for path in files} == {
        "a": "first",
        "latest": "first",
        "sub/data/b": "second",
    }
    # What is written goes where a link leads, as with any program.
    (keeper.data / "latest").write_text("FIRST")
    assert keeper.ask("write_back")["volumes"][0]["left"] == []
    assert (shared / "latest").is_symlink()
    assert (shared / "a").read_text() == "FIRST"


def test_a_file_is_replaced_as_a_whole_or_not_at_all(keeper: Keeper, small_disk: Path) -> None:
    shared = small_disk / "shared"
    shared.mkdir()
    (shared / "a").write_bytes(b"first")
    (shared / "a").chmod(0o640)
    assert keeper.mount(f"file://{shared}", options={}, token=None) == ""
    with (shared / "a").open("rb") as reader:
        (keeper.data / "a").write_bytes(b"SECOND")
        assert keeper.ask("write_back")["volumes"][0]["left"] == []
        assert reader.read() == b"first"  # who has begun to read it goes on
    assert (shared / "a").read_bytes() == b"SECOND"
    assert (shared / "a").stat().st_mode & 0o777 == 0o640
    (keeper.data / "a").write_bytes(os.urandom(3_000_000))
    [said] = keeper.ask("write_back")["volumes"]
    assert (said["left"], said["trouble"]) == (["a"], "No space left on device")
    assert [(each.name, each.read_bytes()) for each in shared.iterdir()] == [("a", b"SECOND")]


def test_a_result_that_others_have_removed_is_no_trouble(keeper: Keeper, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    assert keeper.mount(f"file://{shared}", options={}, token=None) == ""
    (keeper.data / "result").write_text("1")
    keeper.ask("write_back")
    (shared / "result").unlink()
    (keeper.data / "result").unlink()
    assert keeper.ask("write_back")["volumes"][0]["trouble"] == ""
