"""The time of a node, by a clock that nobody sets.

That of the machine may be hours off when it boots, and is set while a run goes on, by a time server
or when a virtual machine wakes up. Notebooks find out by how much this one is ahead of theirs.
"""

from __future__ import annotations

import time


def steady_time() -> float:
    """Return the time in seconds since the epoch, as if the machine's clock were never set."""
    return _EPOCH + _passed()


def time_since_boot(seconds: float) -> float:
    """Return the time at which the machine had run, or will have, for that many seconds."""
    return _EPOCH + seconds


def _passed() -> float:
    """Return seconds since some moment, also those in which the machine slept where it tells."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_EPOCH = time.time() - _passed()
