"""Calls a function soon after each request, but not more often than is of use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from jupyter_sky.transport import event_loop


def call_in_thread(seconds: float, action: Callable[[], None]) -> None:
    """Call ``action`` after ``seconds``, in one of a few threads.

    A kernel opens a socket for each thread that sends something to the page, and closes it some
    time after the thread has ended: with a thread for each call it would run out of descriptors.
    """
    event_loop.call(event_loop.loop().call_later, seconds, event_loop.in_thread, action)


def call_in_loop(seconds: float, action: Callable[[], None]) -> None:
    """Call ``action`` after ``seconds`` in the background loop; to be called from there.

    It is cheaper than a thread, and good for actions that do not block.
    """
    event_loop.loop().call_later(seconds, action)


class Throttle:
    """Calls ``action`` soon after each request, at most once in ``interval`` seconds.

    The action starts after the request that it answers, so it sees what the request was about; and
    never in the thread that requests it, which goes on at once. A request during the action is
    answered after it: a slow one would else take a thread for each.

    Parameters
    ----------
    action
        What is called.
    interval
        Seconds between two calls, at least; it may be changed.
    delay
        Seconds between a request and its call, at least.
    clock, later
        The time, and what calls a function after some seconds; tests bring their own.
    """

    def __init__(
        self,
        action: Callable[[], None],
        interval: float,
        delay: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = call_in_thread,
    ) -> None:
        self._action = action
        self.interval = interval
        self._delay = delay
        self._clock = clock
        self._later = later
        self._lock = threading.Lock()
        self._requested = False
        self._next = clock()
        self._calls = self._going_on = 0

    def request(self) -> None:
        """Let the action be called soon, unless it is going to be anyway."""
        with self._lock:
            if self._requested:
                return
            self._requested = True
            if self._going_on:
                return
            planned = self._planned()
        self._later(*planned)

    def call_now(self) -> None:
        """Call the action at once, in this thread; it answers what was requested before."""
        with self._lock:
            self._begin_call()
        self._call()

    def _planned(self) -> tuple[float, Callable[[], None]]:
        """Return in how many seconds to answer the request, and what does."""
        return max(self._delay, self._next - self._clock()), partial(self._answer, self._calls)

    def _answer(self, calls: int) -> None:
        with self._lock:
            if calls != self._calls:
                return  # `call_now` has answered this request
            self._begin_call()
        self._call()

    def _begin_call(self) -> None:
        self._requested = False
        self._calls += 1
        self._going_on += 1
        self._next = self._clock() + self.interval

    def _call(self) -> None:
        try:
            self._action()
        finally:
            with self._lock:
                self._going_on -= 1
                planned = self._planned() if self._requested and not self._going_on else None
            if planned:
                self._later(*planned)
