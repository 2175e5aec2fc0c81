"""Doing something soon and often, but not more often than is of use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def in_a_thread(seconds: float, action: Callable[[], None]) -> None:
    """Call ``action`` after ``seconds``, in a thread of its own."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


class Throttle:
    """Calls ``action`` soon after each request, at most once in ``interval`` seconds.

    The action starts after the request that it answers, so it sees what the request was about; and
    never in the thread that asks, which goes on at once.

    Parameters
    ----------
    action
        What is called.
    interval
        Seconds that are left between two calls.
    clock, later
        The time, and what calls a function after some seconds; tests bring their own.
    """

    def __init__(
        self,
        action: Callable[[], None],
        interval: float,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = in_a_thread,
    ) -> None:
        self._action = action
        self._interval = interval
        self._clock = clock
        self._later = later
        self._lock = threading.Lock()
        self._requested = False
        self._next = clock()

    def request(self) -> None:
        """Have the action called, unless it is about to be."""
        with self._lock:
            if self._requested:
                return
            self._requested = True
            wait = max(0.0, self._next - self._clock())
        self._later(wait, self._act)

    def _act(self) -> None:
        with self._lock:
            self._requested = False
            self._next = self._clock() + self._interval
        self._action()
