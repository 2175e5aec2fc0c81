"""Waiting for what comes about by itself, in another thread or process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from jupyter_sky.transport import event_loop

T = TypeVar("T")

PATIENCE = 180.0
"""Seconds that something may take which takes less than one: only a test that fails waits so long.

A machine on which the whole suite runs at once is several times slower than one that is idle, and
pauses a process for seconds.
"""


def until(condition: Callable[[], T], within: float = PATIENCE) -> T:
    """Wait until a condition holds, and return what it says.

    A test whose wait is longer than ``within`` seconds fails.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < within, "it did not come about"
        # What takes longer may be looked for less often: other tests have use for the processor.
        time.sleep(min(max(waited / 10, 0.01), 0.1))
    return found


def is_being_stopped(what: str = "") -> bool:
    """Return whether a coroutine was cancelled and goes on, whose name has that in it."""
    tasks = asyncio.all_tasks(event_loop.loop())
    return any(each.cancelling() and what in repr(each.get_coro()) for each in tasks)
