"""Requests of a node's processes to the one that keeps its volumes, over a local socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

NOTE = ".jupyter-sky-volume"
"""The end of the name of the file that says what a volume is, and who keeps it."""

NEW = ".jupyter-sky-new"
"""The end of the names of files that are not in place yet."""

ABSENT = 0o1000
"""The sticky bit: of a file whose content is not on the node's disk."""


def note_places(path: Path) -> tuple[Path, ...]:
    """Return the possible paths of a volume's note: beside its folder, or in it.

    Beside it, since a listing of the folder should show the files of the bucket and nothing else.
    But its parent folder may not be writable.
    """
    beside = (path.with_name(f".{path.name}{NOTE}"),) if path.name else ()
    return (*beside, path / NOTE)


def find_volume(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the note of the volume that contains a path; ``None`` if there is none.

    It contains what a link leads to, and both its own path and the real one may have the note.
    Those of other users do not count: a folder that everybody may write is no reason to trust them.
    """
    place = Path(path).expanduser().absolute()
    real = Path(os.path.realpath(place))
    for folder in dict.fromkeys((real, *real.parents, place, *place.parents)):
        for note in note_places(folder):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if not note.is_file():  # to open something else may wait for ever
                    continue
                found: dict[str, Any] = json.loads(note.read_text())
                if _owner(found["socket"], note) == os.getuid():
                    return found
    return None


def _owner(place: str, note: Path) -> int:
    """Return whose the process is that listens at a socket, or was; the note says where."""
    try:
        return Path(place).stat().st_uid  # a network drive may give a note to nobody
    except FileNotFoundError:
        return note.stat().st_uid


def ask(place: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the process that listens at a socket, and return its answer.

    Raises
    ------
    OSError
        If that process is gone.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(None)  # whatever limit the user has set for sockets: a fetch takes its time
        sock.connect(place)
        sock.sendall(json.dumps(request).encode() + b"\n")
        with sock.makefile("rb") as lines:
            line = lines.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the process that keeps the volumes has ended")
    answer: dict[str, Any] = json.loads(line)
    return answer
