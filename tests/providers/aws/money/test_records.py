"""What is kept on this disk of AWS is whole, whoever else writes it at that moment."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from jupyter_sky import paths
from jupyter_sky.providers.aws import local_store, rented


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    return tmp_path


def test_what_is_rented_while_something_else_is_forgotten_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where `%sky gc` in a terminal ends what a cluster does not know while that grows."""
    rented.note("0123abcd", ["sg-1", "i-1", "i-2"])
    read = rented._read

    def rent_meanwhile(identity: str) -> rented._Record:
        found = read(identity)
        rented.note(identity, ["i-3"])
        rented.note_request(identity, "a-token")
        return found

    with monkeypatch.context() as slow:
        slow.setattr(rented, "_read", rent_meanwhile)
        rented.forget("0123abcd", ["i-1"])
    assert rented.instances("0123abcd") == ["i-2", "i-3"]
    assert rented.groups("0123abcd") == ["sg-1"]
    assert rented.is_expecting("0123abcd")
    rented.forget("0123abcd", ["i-2", "i-3"])
    assert rented.instances("0123abcd") == []


@pytest.mark.parametrize(("ahead", "is_new"), [(30.0, True), (3600.0, False)])
def test_what_a_clock_that_is_ahead_has_recorded_is_new_all_the_same(
    ahead: float, is_new: bool
) -> None:
    """As where a server keeps the home; but no clock keeps something new for hours."""
    rented.note("0123abcd", ["i-1"])
    rented.note_request("0123abcd", "a-token")
    later = time.time() + ahead
    os.utime(local_store.folder() / "rented" / "0123abcd", (later, later))
    assert rented.unacknowledged("0123abcd") == ["i-1"] * is_new
    assert rented.is_expecting("0123abcd") is is_new


def test_threads_that_ask_aws_the_same_at_once_all_get_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the sidebar's and a cell's do when what was asked before has become old."""
    both_write, rename = threading.Barrier(2), Path.replace

    def wait_and_rename(new: Path, path: Path) -> Path:
        both_write.wait(60)
        return rename(new, path)

    monkeypatch.setattr(Path, "replace", wait_and_rename)
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(local_store.cached, "user", 60.0, ask)
            for ask in (lambda: "arn:one", lambda: "arn:another")
        ]
        answers = {each.result()[0] for each in asked}
    assert answers == {"arn:one", "arn:another"}
    kept, _ = local_store.cached("user", 60.0, lambda: pytest.fail("it is known"))
    assert kept in answers


def test_notebooks_that_use_aws_first_at_the_same_moment_are_one_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another id would have `%sky gc` take what it is on for something of another computer's."""
    others: list[str] = []

    def begin(path: Path, *place: Any, **options: Any) -> IO[str]:
        file = usual(path, *place, **options)
        if "owner" in path.name and not others:
            others.append("")
            others[:] = [threads.submit(local_store.owner).result()]
        return file

    usual = open
    for name, module in (("open", paths), ("open", Path)):
        monkeypatch.setattr(module, name, begin, raising=False)
    with ThreadPoolExecutor(1) as threads:
        ours = local_store.owner()
    assert len(ours) == 12
    assert others == [ours]


def test_a_disk_that_was_full_leaves_no_owner_without_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path, *place: Any, **options: Any) -> IO[str]:
        file = usual(path, *place, **options)
        if "owner" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return file

    usual = open
    with monkeypatch.context() as full:
        for name, module in (("open", paths), ("open", Path)):
            full.setattr(module, name, refuse, raising=False)
        with pytest.raises(OSError, match="No space left"):
            local_store.owner()
    assert len(local_store.owner()) == 12


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever ends instances asks first whose they are."""

    def refuse(path: Path, *place: Any, **options: Any) -> IO[str]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(paths, "open", refuse, raising=False)
        assert local_store.cached("user", 60.0, lambda: "arn:one") == ("arn:one", 0.0)
    assert local_store.cached("user", 60.0, lambda: "arn:another")[0] == "arn:another"


def test_what_has_ended_need_not_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS says the same the next time; a cluster whose instance is given back goes on meanwhile."""

    def refuse(path: Path, mode: str = "r", *place: Any, **options: Any) -> IO[str]:
        if mode == "a":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return usual(path, mode, *place, **options)

    usual = Path.open
    rented.note("0123abcd", ["i-1", "i-2"])
    with monkeypatch.context() as full:
        full.setattr(Path, "open", refuse)
        rented.forget("0123abcd", ["i-1"])
    assert rented.instances("0123abcd") == ["i-1", "i-2"]
