"""The process of a call, and what it has started by the time it ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jupyter_sky.node.blobs.partial_blob import new_part
from jupyter_sky.node.forking.fork_server import PR_SET_CHILD_SUBREAPER
from jupyter_sky.node.rank.calls.process import CallProcess, Mail
from tests.node_processes import is_there
from tests.waiting import PATIENCE, until

CALL: Any = {"number": 1}


def starts_another(place: Path, waits: bool) -> Callable[..., Any]:
    """Return a call that starts a process, and perhaps waits for it."""

    def call(*_: object) -> Any:
        started = subprocess.Popen(["sleep", "600"])
        place.with_suffix(".part").write_text(str(started.pid))
        place.with_suffix(".part").rename(place)
        if waits:
            started.wait()
        return SimpleNamespace(kind="value")

    return call


@pytest.mark.parametrize("how", ["late", "stopped", "over"])
def test_what_a_call_has_started_ends_with_its_process(tmp_path: Path, how: str) -> None:
    place = tmp_path / "pid"
    process, mail = CallProcess(starts_another(place, how != "over"), print, tmp_path), Mail()
    thread = threading.Thread(
        target=process.call, args=(CALL, 3.0 if how == "late" else None, mail), daemon=True
    )
    thread.start()
    until(place.exists)
    started = psutil.Process(int(place.read_text()))
    try:
        if how == "stopped":
            process.stop(mail)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        if how == "over":
            process.end()
        until(lambda: not is_there(started))
    finally:
        with suppress(psutil.NoSuchProcess):
            started.kill()
        process.end()


@pytest.fixture
def adopts_orphans() -> Iterator[None]:
    """This process has the orphans of those below it, as a fork server has."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def in_a_session_of_its_own(_: list[object]) -> int:
    nothing = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(["sleep", "600"], start_new_session=True, **nothing).pid


def forked(kept: list[object]) -> int:
    kept.append(manager := multiprocessing.get_context("fork").Manager())  # ignores SIGINT
    pid: int = manager._process.pid  # type: ignore[attr-defined]
    return pid


@pytest.mark.usefixtures("adopts_orphans")
@pytest.mark.parametrize("start", [in_a_session_of_its_own, forked])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_a_call_has_started_ends_where_others_have_ended_its_process(
    tmp_path: Path, start: Callable[[list[object]], int], number: int
) -> None:
    place, kept = tmp_path / "pid", list[object]()

    def call(*_: object) -> Any:
        place.with_suffix(".part").write_text(str(start(kept)))
        place.with_suffix(".part").rename(place)
        signal.pause()

    process = CallProcess(call, print, tmp_path)
    thread = threading.Thread(target=process.call, args=(CALL, None, Mail()), daemon=True)
    thread.start()
    until(place.exists)
    started = psutil.Process(int(place.read_text()))
    try:
        os.kill(process._process.pid or 0, number)  # as Stop does
        thread.join(PATIENCE)
        until(lambda: not is_there(started))
    finally:
        with suppress(psutil.NoSuchProcess):
            started.kill()
        process.end()


def test_a_call_that_is_killed_is_noticed_though_a_child_of_its_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "pid"

    def call(*_: object) -> Any:
        if child := os.fork():
            place.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    process = CallProcess(call, print, tmp_path)
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(process.call(CALL, None, Mail())), daemon=True
    )
    thread.start()
    try:
        thread.join(PATIENCE)
        assert answers == [None] and not process.was_late
    finally:
        os.kill(int(place.read_text()), signal.SIGKILL)
        process.end()


def test_what_a_call_was_writing_when_its_time_was_over_is_removed(tmp_path: Path) -> None:
    others = tmp_path / "1-others.part"
    others.touch()

    def call(*_: object) -> Any:
        new_part(tmp_path).write_bytes(b"some")
        time.sleep(600)

    process = CallProcess(call, print, tmp_path)
    done = threading.Thread(target=process.call, args=(CALL, 3.0, Mail()))
    done.start()
    until(lambda: len([*tmp_path.iterdir()]) == 2)
    done.join()
    assert [*tmp_path.iterdir()] == [others]
