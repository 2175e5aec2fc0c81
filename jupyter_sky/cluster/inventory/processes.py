"""Whether a process of this computer that has written something is still there."""

from __future__ import annotations

import psutil


def began(pid: int) -> float | None:
    """Return when a process began, in seconds since the epoch; ``None`` if it has ended.

    One that has ended can stay in the system's table, as in a container whose first process waits
    for no others. And another one can have got its id since.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
