"""Sweep out what dead agents left, before another one starts.

An agent removes its files when it ends. One that was killed leaves them, and shared memory that
nobody gives back is taken from all until the machine starts again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from jupyter_sky.node.alive import is_abandoned

_SHARED_MEMORY = Path("/dev/shm")
_OURS = "jupyter-sky-*"
_NEVER_USED_AFTER = 3600.0  # seconds; who makes a folder there starts an agent at once


def sweep(runtime: Path) -> None:
    """Remove what dead agents left of this user.

    Parameters
    ----------
    runtime
        Where the folders of agents are; in shared memory all that has our name is looked at.
    """
    for folder in _mine(runtime, "*"):
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in _mine(_SHARED_MEMORY, _OURS):
        if is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _NEVER_USED_AFTER:
                folder.rmdir()  # only if nothing is in it


def _mine(parent: Path, pattern: str) -> Iterator[Path]:
    for folder in parent.glob(pattern) if parent.is_dir() else ():
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.getuid():
                yield folder
