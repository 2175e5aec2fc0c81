"""Waiting for what comes about by itself, in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], within: float = 60.0) -> T:
    """Wait until a condition holds, and return what it says.

    A test whose wait is longer than ``within`` seconds fails.
    """
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return found
