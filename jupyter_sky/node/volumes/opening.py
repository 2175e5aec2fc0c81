"""Fetches a volume's file before Python opens it on a rank, with proper errors.

Any program would wait in Linux until the file is there. But Linux waits for less than a minute, and
cannot say what went wrong.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from jupyter_sky.transport.volumes.asking import ABSENT, ask

LIST = ".volumes"
"""The file beside the blobs of a node that names its volumes."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(
    {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
)

_roots: dict[str, dict[str, Any]] = {}
_seen = 0
_watches = False


def watch(folder: Path) -> None:
    """Start to watch the volumes of this node, if there are any.

    Parameters
    ----------
    folder
        The folder of the node's blobs.
    """
    global _seen, _watches
    place = f"{folder}/{LIST}"  # checked before each run, where a `Path` would be slower
    if not os.access(place, os.F_OK):  # and so would an exception
        return
    try:
        changed = os.stat(place).st_mtime_ns  # noqa: PTH116
    except OSError:
        return
    if changed == _seen:
        return
    _seen = changed
    _roots.clear()
    _roots.update({f"{each['path']}/": each for each in json.loads(Path(place).read_text())})
    if not _watches:
        _watches = True
        sys.addaudithook(_on_event)


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = args
        if (found := _volume_of(path)) is None:
            return
        place, volume = found
        if isinstance(flags, int) and flags & _WRITES:
            _refuse_if_read_only(place, volume)
        is_replaced = isinstance(flags, int) and bool(flags & os.O_TRUNC)
        _fetch(place, volume, "replace_file" if is_replaced else "fetch_file")
    elif event in _CHANGES:
        # A file that is moved out of a volume is removed there.
        for path in args[:2] if event == "os.rename" else args[-2:]:
            if found := _volume_of(path):
                _refuse_if_read_only(*found)


def _volume_of(path: object) -> tuple[str, dict[str, Any]] | None:
    """Return an absolute path, and the volume that contains it."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str):
        return None
    if not path.startswith("/") or "/." in path:
        path = os.path.abspath(path)  # noqa: PTH100
    for root, volume in _roots.items():
        if path.startswith(root):
            return path, volume
    return None


def _refuse_if_read_only(path: str, volume: dict[str, Any]) -> None:
    if volume["read_only"]:
        raise PermissionError(
            errno.EACCES,
            f"{volume['path']} is read-only, as its `:ro` says: write elsewhere, or start the "
            "cluster without it",
            path,
        )


def _fetch(path: str, volume: dict[str, Any], op: str) -> None:
    try:
        if not os.stat(path).st_mode & ABSENT:  # noqa: PTH116
            return
    except OSError:
        return  # Python raises this error itself
    name = path[len(volume["path"]) + 1 :]
    try:
        answer = ask(volume["socket"], {"op": op, "path": volume["path"], "name": name})
        trouble = answer["trouble"]
    except OSError:
        trouble = "the process that keeps the volumes of the node has ended"
    if trouble:
        raise OSError(errno.EIO, f"{volume['url']}: {trouble}", path)
