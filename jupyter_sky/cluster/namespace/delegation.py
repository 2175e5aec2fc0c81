"""A delegation lock: a change to locked data is left to the thread that holds the lock.

What is wanted: one thread at a time uses some data. One of the threads uses it for seconds, and
another is an event loop, which must not be blocked for that long.

What does not work: a plain lock, because the event loop would wait for it; or a queue of changes
that only one thread applies, because that thread may not use the data again for hours.

The solution: changes are queued, and applied by whichever thread holds the lock. Mostly this is the
thread that asked for the change, which finds the lock free. (The literature calls this delegation,
or flat combining.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class DelegationLock:
    """A reentrant lock, and a queue of changes that the thread applies which holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._queue: deque[Callable[[], None]] = deque()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Acquire the lock, waiting for it if needed, and apply the changes that are queued."""
        try:
            with self._lock:
                self.apply_waiting()
                yield
        finally:
            self._apply_if_free()

    def apply(self, change: Callable[..., None], *arguments: Any) -> None:
        """Apply a change now if the lock is free; otherwise its holder applies it. Never wait.

        Parameters
        ----------
        change
            A function that takes little time. It is called again if Ctrl-C interrupts it.
        arguments
            Its arguments.
        """
        self._queue.append(partial(change, *arguments))
        self._apply_if_free()

    def apply_waiting(self) -> None:
        """Apply the changes that are queued; only for the thread that holds the lock."""
        while self._queue:
            change = self._queue.popleft()
            try:
                change()
            except KeyboardInterrupt:
                self._queue.appendleft(change)
                raise

    def _apply_if_free(self) -> None:
        # Also called after each release, for changes that were queued just before it.
        while self._queue and self._lock.acquire(blocking=False):
            try:
                self.apply_waiting()
            finally:
                self._lock.release()
