"""What a process does with work that the user has stopped waiting for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from typing import Any, NoReturn

import pytest

from jupyter_sky.transport import event_loop
from tests.waiting import PATIENCE, until

PROGRAM = """
import asyncio, sys
from jupyter_sky.transport import event_loop

async def work():
    print("begun", flush=True)
    try:
        await asyncio.sleep(600 if {is_cancelled} else 0.5)
    finally:
        print("cleaning up", flush=True)
        await asyncio.sleep(0.5)
        print("completed", flush=True)

event_loop.{wait}(work())
"""


@pytest.mark.parametrize(
    ("wait", "presses"),
    [("wait_uninterrupted", ["begun"]), ("wait_with_cleanup", ["begun", "cleaning up"])],
)
def test_what_ctrl_c_stops_waiting_for_is_completed_before_the_process_ends(
    wait: str, presses: list[str]
) -> None:
    program = PROGRAM.format(wait=wait, is_cancelled=len(presses) > 1)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for line in presses:
            assert process.stdout.readline().strip() == line
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out.endswith("completed\n")
    assert "waiting until what was stopped is ended; Ctrl-C leaves it as it is" in err


def test_what_has_begun_is_completed_however_soon_ctrl_c_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    done: list[str] = []

    async def work() -> None:
        begun.set()
        await asyncio.to_thread(goes_on.wait)
        done.append("completed")

    def interrupted(coroutine: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        future = submit(coroutine)
        if not event_loop.is_here():
            begun.wait()
            raise KeyboardInterrupt
        return future

    submit = event_loop.submit
    with monkeypatch.context() as patch:
        patch.setattr(event_loop, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            event_loop.wait_uninterrupted(work())
    assert done == []
    goes_on.set()
    event_loop.finish(PATIENCE)
    assert done == ["completed"]


def test_no_question_waits_for_a_thread_whose_wait_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(coroutine: Coroutine[Any, Any, object]) -> NoReturn:
        coroutine.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(event_loop, "submit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            event_loop.wait(asyncio.sleep(0))
    with pytest.raises(event_loop.NoWaitingThread):
        event_loop.call_in_waiting_thread(str)


def test_ctrl_c_at_a_question_does_not_end_the_loop() -> None:
    def answer() -> NoReturn:
        raise KeyboardInterrupt

    async def ask() -> None:
        try:
            await asyncio.to_thread(event_loop.call_in_waiting_thread, answer)
        except event_loop.NoWaitingThread:
            given_up.set()

    given_up = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        event_loop.wait_uninterrupted(ask())
    assert given_up.wait(PATIENCE)
    assert event_loop.wait(asyncio.sleep(0, "goes on")) == "goes on"


def test_a_question_that_nobody_has_asked_when_another_one_ends_the_wait_is_given_up() -> None:
    asked: list[concurrent.futures.Future[str]] = []

    def end_the_wait() -> NoReturn:
        asked.append(pool.submit(event_loop.call_in_waiting_thread, str))
        [waiting] = [each for each in event_loop._waiting if not each.is_over]
        until(lambda: not waiting.requests.empty())
        raise KeyboardInterrupt

    async def ask() -> None:
        await asyncio.to_thread(event_loop.call_in_waiting_thread, end_the_wait)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        with pytest.raises(KeyboardInterrupt):
            event_loop.wait(ask())
        with pytest.raises(event_loop.NoWaitingThread):
            asked[0].result(PATIENCE)


def test_nothing_is_asked_while_what_was_stopped_is_cleaned_up() -> None:
    stopped = threading.Event()
    asked: list[str] = []

    async def work() -> None:
        stopped.set()
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(event_loop.NoWaitingThread):
                await asyncio.to_thread(event_loop.call_in_waiting_thread, asked.append, "again")

    with event_loop.interrupted_by(stopped), pytest.raises(KeyboardInterrupt):
        event_loop.wait_with_cleanup(work())
    assert asked == []


def test_ctrl_c_ends_a_wait_whichever_thread_the_signal_is_given_to() -> None:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def interrupt() -> None:
        until(lambda: future._waiters)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        event_loop.wait_for(future)
    thread.join()
    event_loop.wait_for(future, 0.01)
    future.set_result(None)
    event_loop.wait_for(future)
