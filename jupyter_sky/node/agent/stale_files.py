"""Removes folders of dead agents: each agent locks a file in its own, which later ones check.

The system releases the lock however the agent ends, and other containers can see it. Folders that
agents of several machines share have no lock: they are marked as used from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

TOUCH_EVERY = 3600.0
"""Seconds after which the folders that a node uses are marked as used again."""

_NAME = "alive"
_SHARED_MEMORY = Path("/dev/shm")
_OURS = "jupyter-sky-*"
_NEVER_USED_AFTER = 3600.0  # seconds; younger folders may belong to an agent that is starting


def claim(folder: Path) -> None:
    """Mark a folder as belonging to this process, for as long as the process lives."""
    new = folder / f"{_NAME}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT, 0o600)
    # On a file system without locks, no folder counts as abandoned.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    # The file gets its name only once it is locked.
    new.rename(folder / _NAME)


def is_abandoned(folder: Path) -> bool:
    """Return whether the process that claimed a folder is gone; ``False`` if none ever did."""
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


def is_removed(folder: Path) -> bool:
    """Return whether a folder is gone; one that cannot be reached may come back."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


async def keep(folders: Sequence[str]) -> None:
    """Mark folders as used: machines that share a home cannot see each other's processes."""
    while True:
        for folder in folders:
            with contextlib.suppress(OSError):
                os.utime(folder)
        await asyncio.sleep(TOUCH_EVERY)


def sweep(runtime: Path) -> None:
    """Remove what dead agents of this user have left.

    Parameters
    ----------
    runtime
        The folder that contains those of agents. In shared memory, all folders with our prefix are
        checked.
    """
    for folder in _own_folders(runtime, "*"):
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in _own_folders(_SHARED_MEMORY, _OURS):
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _NEVER_USED_AFTER:
                folder.rmdir()  # only if it is empty


def _own_folders(parent: Path, pattern: str) -> Iterator[Path]:
    for folder in parent.glob(pattern) if parent.is_dir() else ():
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid():
                yield folder
