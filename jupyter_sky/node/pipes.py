"""The pipes that processes have open, by which they are known that were forked from another."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path


def pipes_of(descriptors: Iterable[int]) -> frozenset[str]:
    """Return the names of the pipes among descriptors, as /proc has them for any process."""
    found = map(os.fstat, descriptors)
    # The number of a file may be that of a pipe, too.
    return frozenset(f"pipe:[{each.st_ino}]" for each in found if stat.S_ISFIFO(each.st_mode))


def has_pipe(pid: int, pipes: Collection[str], names: Iterable[str] | None = None) -> bool:
    """Return whether a process has one of some pipes open, by default at any descriptor.

    Raises
    ------
    OSError
        If its descriptors cannot be listed.
    """
    folder = Path(f"/proc/{pid}/fd")
    for link in folder.iterdir() if names is None else map(folder.joinpath, names):
        with contextlib.suppress(OSError):  # it has closed it
            if str(link.readlink()) in pipes:
                return True
    return False
