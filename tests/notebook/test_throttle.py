"""Requests that are answered soon, and not more often than is of use."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

from jupyter_sky.notebook.throttle import Throttle, call_in_thread


class Clock:
    """Time that passes when a test says so, and what is called meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, action))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while ripe := [each for each in self.due if each[0] <= end]:
            self.due.remove(ripe[0])
            self.now, action = ripe[0]
            action()
        self.now = end


def throttled(clock: Clock) -> tuple[Throttle, list[float]]:
    """A throttle with an interval of 1 s and a delay of 0.25 s, and when its action was called."""
    calls: list[float] = []
    throttle = Throttle(
        lambda: calls.append(clock()), interval=1.0, delay=0.25, clock=clock, later=clock.later
    )
    return throttle, calls


def test_requests_share_a_call_and_calls_keep_their_distance() -> None:
    clock = Clock()
    throttle, calls = throttled(clock)
    for _ in range(3):
        throttle.request()
    clock.wait(0.5)
    throttle.request()
    clock.wait(5.0)
    throttle.request()
    clock.wait(5.0)
    assert calls == [0.25, 1.25, 5.75]


def test_a_call_at_once_answers_what_was_requested() -> None:
    clock = Clock()
    throttle, calls = throttled(clock)
    throttle.request()
    throttle.call_now()
    clock.wait(0.5)
    throttle.request()
    clock.wait(5.0)
    assert calls == [0.0, 1.0]


def test_a_request_during_a_call_is_answered_when_that_has_ended() -> None:
    clock = Clock()
    calls: list[float] = []

    def action() -> None:
        calls.append(clock())
        if len(calls) < 3:
            throttle.request()
            throttle.request()
        assert not clock.due  # else a slow one would take another thread for each

    throttle = Throttle(action, interval=1.0, delay=0.25, clock=clock, later=clock.later)
    throttle.request()
    clock.wait(5.0)
    assert calls == [0.25, 1.25, 2.25]


def test_many_calls_take_few_threads() -> None:
    threads: set[threading.Thread] = set()
    left = 300
    done = threading.Event()

    def action() -> None:
        nonlocal left
        with lock:
            threads.add(threading.current_thread())
            left -= 1
            if not left:
                done.set()

    lock = threading.Lock()
    for _ in range(300):
        call_in_thread(0.0, action)
    assert done.wait(60)
    assert len(threads) <= 32  # as many as asyncio has for everything
    assert threading.main_thread() not in threads


ENDING = """
import asyncio, concurrent.futures.thread as threads
from jupyter_sky.notebook.throttle import call_in_thread
from jupyter_sky.transport import event_loop

threads._python_exit()  # what Python does first when it ends
call_in_thread(0.0, lambda: print("called"))
event_loop.wait(asyncio.sleep(0))
event_loop.wait(asyncio.sleep(0))
"""


def test_a_kernel_that_ends_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
