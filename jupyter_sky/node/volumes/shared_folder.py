"""A folder that several nodes see, with the methods of fsspec's file systems that buckets use."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_sky.transport.volumes.asking import NEW

_numbers = itertools.count(1)


class SharedFolder:
    """The files below a folder.

    Links stand for what they lead to. A file that is written replaces the one before as a whole:
    others may read that meanwhile.
    """

    def invalidate_cache(self) -> None:
        """Do nothing: nothing is kept."""

    def find(self, root: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return the files below a folder, by path."""
        found = {}
        for path in _files(Path(root), ()):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a dangling link
                found[str(path)] = self.info(str(path))
        return found

    def info(self, path: str) -> dict[str, Any]:
        """Return the state of a file."""
        said = os.stat(path)  # noqa: PTH116
        kind = "file" if stat.S_ISREG(said.st_mode) else "other"
        return {"size": said.st_size, "mtime": said.st_mtime_ns, "type": kind}

    def cat_file(self, path: str, start: int | None, end: int | None) -> bytes:
        """Return a file, or a part of it."""
        with Path(path).open("rb") as file:
            file.seek(start or 0)
            return file.read(-1 if end is None else end - (start or 0))

    def put_file(self, source: str, path: str) -> None:
        """Write a file."""
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{os.uname().nodename}-{os.getpid()}-{next(_numbers)}{NEW}")
        try:
            shutil.copyfile(source, new)
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, new)
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        Path(path).unlink()


def _files(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    said = folder.stat()
    place = said.st_dev, said.st_ino
    if place in above:
        return  # a link to a folder that it is in
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir():
            with contextlib.suppress(FileNotFoundError):
                yield from _files(Path(entry.path), (*above, place))
        else:
            yield Path(entry.path)
