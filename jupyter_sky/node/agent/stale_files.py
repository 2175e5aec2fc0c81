"""Folders that dead agents have left: an agent locks a file in its own, and the next looks for it.

The system releases the lock however an agent ends, and processes in other containers see it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "alive"
_SHARED_MEMORY = Path("/dev/shm")
_OURS = "jupyter-sky-*"
_NEVER_USED_AFTER = 3600.0  # seconds; an agent starts in a new folder at once


def claim(folder: Path) -> None:
    """Mark a folder as that of this process, for as long as the process lives."""
    new = folder / f"{_NAME}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT, 0o600)
    # Where a file system has no locks, no folder is taken for abandoned.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    # The file has its name only once it is locked.
    new.rename(folder / _NAME)


def is_abandoned(folder: Path) -> bool:
    """Return whether the process is gone that claimed a folder; ``False`` if none ever did."""
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


def sweep(runtime: Path) -> None:
    """Remove what dead agents of this user have left.

    Parameters
    ----------
    runtime
        Where the folders of agents are. In shared memory all folders with our name are looked at.
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
                folder.rmdir()  # only if nothing is in it


def _own_folders(parent: Path, pattern: str) -> Iterator[Path]:
    for folder in parent.glob(pattern) if parent.is_dir() else ():
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid():
                yield folder
