"""Whether the agent that a folder belongs to is alive: it holds a lock there as long as it lives.

The system lets go of the lock however an agent ends, and whichever container looks sees it held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

_NAME = "alive"


def claim(folder: Path) -> None:
    """Make a folder that of this process, for as long as it lives."""
    new = folder / f"{_NAME}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT, 0o600)
    # Where a file system has no locks, nobody takes a folder for abandoned.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    # Whoever finds the file finds it locked.
    new.rename(folder / _NAME)


def is_abandoned(folder: Path) -> bool:
    """Return whether the process is gone that a folder belonged to; not if it never did to one."""
    try:
        fd = os.open(folder / _NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)
