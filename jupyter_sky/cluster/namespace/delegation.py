"""A lock that nobody has to wait for: who finds it taken leaves the work to its holder.

Wanted: one thread at a time changes some data. One of the threads needs the data for seconds, and
another is an event loop, which must not stand still for that.

What does not work: a plain lock, for which the loop would wait; or a queue that only one thread
takes from, because that thread may have nothing to do with the data for hours.

Solution: changes are queued, and applied by whoever holds the lock. This is mostly the thread that
queued them, which finds the lock free. (The literature calls it flat combining, or delegation.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class DelegationLock:
    """A reentrant lock, and the changes that are applied by its holder."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[Callable[[], None]] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, after all changes that were asked for so far; wait for it if needed."""
        try:
            with self._lock:
                self.apply_waiting()
                yield
        finally:
            self._apply_if_free()

    def apply(self, change: Callable[..., None], *arguments: Any) -> None:
        """Apply a change now, or have the holder of the lock do so; never wait.

        Parameters
        ----------
        change
            Takes little time. It is called twice when Ctrl-C comes in the middle of it.
        arguments
            What it is called with.
        """
        self._waiting.append(partial(change, *arguments))
        self._apply_if_free()

    def apply_waiting(self) -> None:
        """Apply the changes that were asked for meanwhile; only for the holder of the lock."""
        while self._waiting:
            change = self._waiting.popleft()
            try:
                change()
            except KeyboardInterrupt:
                self._waiting.appendleft(change)
                raise

    def _apply_if_free(self) -> None:
        # The holder comes by here too, after it has let go: no change is left behind.
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                self.apply_waiting()
            finally:
                self._lock.release()
