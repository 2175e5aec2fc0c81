"""Finds files on a node and reads parts of them, for a notebook that downloads them."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from jupyter_sky.transport.blobs.sent_folders import FolderModes, open_to
from jupyter_sky.transport.protocol.agent_requests import FilePart, FindAnswer, FoundFile

_MOST_LOOKED_AT = 20_000
"""Entries that are looked at for what a run has written."""

_NOT_RESULTS = ("__pycache__", "node_modules")

_MOST_LINKS = 10
"""Links that lead elsewhere of which is told."""

_PAGE = 4096
_MOST_MADE = 1 << 26
"""Bytes that are read of a file that the system makes up, to learn its size."""


def find(base: Path, patterns: Sequence[str], most: int) -> FindAnswer:
    """Return the files that match patterns.

    Parameters
    ----------
    base
        The folder that ranks start in, to which patterns are relative.
    patterns
        Names of files and folders, as a shell expands them; a folder stands for all of its content.
    most
        The most files to return.
    """
    found: dict[str, FoundFile] = {}
    answer: FindAnswer = {"files": [], "missing": [], "has_more": False, "links_out": []}
    for pattern in patterns:
        full = os.path.normpath(os.path.join(base, os.path.expanduser(pattern)))  # noqa: PTH111, PTH118
        # A name may have what else stands for others, as in `run[1].csv`.
        is_name = os.path.lexists(full)
        names = [full] if is_name else sorted(glob.glob(full, recursive=True))  # noqa: PTH207
        places = [Path(each) for each in names]
        if not places:
            answer["missing"].append(pattern)
        if not is_name and full.endswith("/**"):
            # These are all files that are not hidden; whole folders have others.
            places = [each for each in places if each.is_file()]
        for place in places:
            above = base if place.is_relative_to(base) and place != base else place.parent
            modes = FolderModes(above)
            for path in _files(place):
                name = path.relative_to(above).as_posix()
                if path.is_dir():
                    answer["links_out"] = [*answer["links_out"], name][:_MOST_LINKS]
                    continue
                if len(found) >= most:
                    return {**answer, "files": list(found.values()), "has_more": True}
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = path.stat()
                    found[str(path)] = {
                        "path": str(path),
                        "name": name,
                        "size": _size(path, status),
                        "changed": status.st_mtime_ns,
                        "mode": open_to(status.st_mode, modes.above(name)),
                    }
    return {**answer, "files": list(found.values())}


def read(parts: Sequence[FilePart]) -> list[bytes | None]:
    """Return parts of files; ``None`` for each that cannot be read."""
    return [_read(*part) for part in parts]


def written(base: Path, since: int) -> list[str]:
    """Return the entries of a folder that are new or changed since a time; folders end with a /.

    Parameters
    ----------
    base
        The folder that ranks begin in.
    since
        The time by this node's file system, in nanoseconds since the epoch.
    """
    left = _MOST_LOOKED_AT
    names = []
    for entry in sorted(_entries(base), key=lambda each: each.name):
        newest = False
        waiting = [entry]
        while waiting and left and not newest:
            each = waiting.pop()
            left -= 1
            if each.is_dir(follow_symlinks=False):
                waiting += _entries(Path(each.path))
            elif each.is_file():
                newest = each.stat().st_mtime_ns >= since
        if newest:
            names.append(entry.name + "/" * entry.is_dir())
    return names


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            shown = [each for each in entries if not each.name.startswith(".")]
    except OSError:
        return []
    return [each for each in shown if each.name not in _NOT_RESULTS]


def _files(place: Path) -> Iterator[Path]:
    """Yield the files of a place, and the links in it that lead to folders elsewhere."""
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place, followlinks=True):
        kept = sorted(each for each in folders if each not in _NOT_RESULTS)
        yield from (path for each in kept if _leads_out(path := Path(folder, each), place))
        folders[:] = [each for each in kept if _is_content(Path(folder, each), place)]
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not name.startswith(".sky-sent-"):
                yield path


def _is_content(path: Path, place: Path) -> bool:
    """Return whether a folder is content of ``place``, as is a link like ``last -> step-300``.

    A link that leads out of it, to a data set perhaps, is not, and neither is one that leads back
    to a folder that it is in.
    """
    if not path.is_symlink():
        return True
    target = path.resolve()
    above = [each.resolve() for each in path.parents if each.is_relative_to(place)]
    return target.is_relative_to(place.resolve()) and not any(
        each.is_relative_to(target) for each in above
    )


def _leads_out(path: Path, place: Path) -> bool:
    """Return whether a folder is elsewhere, neither in ``place`` nor around it."""
    if not path.is_symlink():
        return False
    target, whole = path.resolve(), place.resolve()
    return not whole.is_relative_to(target) and not target.is_relative_to(whole)


def _size(path: Path, status: os.stat_result) -> int:
    """Return how many bytes a file has: those of /proc and /sys say 0 or a page, whatever it is."""
    if status.st_blocks or status.st_size > _PAGE:
        return status.st_size
    made = _read(str(path), 0, _MOST_MADE)
    return status.st_size if made is None else len(made)


def _read(path: str, offset: int, limit: int) -> bytes | None:
    try:
        # What the kernel writes, like /proc/kmsg, would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            file.seek(offset)
            return file.read(limit)
    except OSError:
        return None
