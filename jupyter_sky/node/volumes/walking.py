"""Files and links below the folder of a volume."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from jupyter_sky.transport.volumes.asking import NEW


def files_of(
    path: Path,
    notes: Collection[str],
    on_unreadable: Callable[[str], object],
    only: Collection[str] = (),
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names of files below a volume's folder, except our own, and their states.

    ``on_unreadable`` is called with the name of each folder that cannot be read, such as one that
    another user has made, and of each file that cannot be looked at. With ``only``, files and
    folders of these names are looked at; everything by default.
    """
    start = len(str(path)) + 1

    def pass_over(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            on_unreadable(error.filename[start:])

    def places() -> Iterator[str]:
        for top in (path / name for name in only) if only else (path,):
            if os.path.isfile(top):  # noqa: PTH113 - also in a folder that cannot be read
                yield str(top)
                continue
            for folder, _, names in os.walk(top, onerror=pass_over):
                # Not a `Path`: this is for every file after each run.
                yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118

    for place in dict.fromkeys(places()) if only else places():
        if is_ours(place, notes):
            continue
        try:
            found = os.lstat(place)
        except OSError as error:
            pass_over(error)
        else:
            if stat.S_ISREG(found.st_mode):
                yield place[start:], found


def is_ours(place: str, notes: Collection[str]) -> bool:
    """Return whether a path is a file of ours, which no bucket gets."""
    return place.endswith(NEW) or place in notes


def links_of(path: Path) -> list[str]:
    """Return the names of symbolic links in readable folders; a bucket cannot store any."""
    found, folders, start = [], [str(path)], len(str(path)) + 1
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    found.append(entry.path[start:])
                elif entry.is_dir():
                    folders.append(entry.path)
    return sorted(found)
