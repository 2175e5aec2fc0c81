"""The folders of wheels that were made on this computer, until `%sky gc` removes unused ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from jupyter_sky.paths import home


def parent() -> Path:
    """Return the folder that these folders are in."""
    folder = home() / "wheels"
    folder.mkdir(exist_ok=True)
    return folder


def note_use(wheel: Path) -> None:
    """Note that a wheel is used now."""
    os.utime(wheel.parent)


def remove_unused(since: float) -> int:
    """Remove folders whose wheels were not used since then; return how many these were."""
    unused = [each for each in parent().iterdir() if each.stat().st_mtime < since]
    for folder in unused:
        shutil.rmtree(folder, ignore_errors=True)
    return len(unused)
