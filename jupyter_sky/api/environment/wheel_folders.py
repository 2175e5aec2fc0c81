"""The folders of wheels that were made on this computer, until `%sky gc` removes unused ones."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from jupyter_sky.paths import home


def parent() -> Path:
    """Return the folder that these folders are in."""
    folder = home() / "wheels"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def note_use(wheel: Path) -> None:
    """Note that a wheel is used now."""
    with contextlib.suppress(OSError):  # of a home that can only be read
        os.utime(wheel.parent)


def remove_unused(since: float) -> int:
    """Remove folders whose wheels were not used since then; return how many these were."""
    count = 0
    for folder in parent().iterdir():
        with contextlib.suppress(OSError):  # who makes one removes it where that fails
            if folder.stat().st_mtime < since:
                shutil.rmtree(folder)
                count += 1
    return count
