"""Waiting for what comes about by itself, in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], within: float = 60.0) -> None:
    """Wait until a condition holds; a test whose wait is longer than ``within`` seconds fails."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
