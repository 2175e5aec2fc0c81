"""The folder that a rank works in, where it was removed and made again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_OWN = Path("/proc/self/cwd")
_REMOVED = " (deleted)"  # as Linux marks it


def find_again() -> None:
    """Go to the folder that has the place of the working folder by now, if that was removed.

    As after ``rm -rf`` in a shell and `%sky put`: a process stays in the folder that is gone, and
    would see none of the files.
    """
    try:
        Path.cwd()
    except OSError:
        with contextlib.suppress(OSError):  # there is none, or this system does not tell its name
            os.chdir(str(_OWN.readlink()).removesuffix(_REMOVED))
