"""How a folder is sent to nodes, the names of files that a node keeps about it, and their modes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NotRequired, TypedDict

LOCK_NAME = ".sky-sent-lock"
"""The name of a file beside the record of a folder that whoever writes the folder locks."""


class FilePart(TypedDict):
    """A part of a file as a blob, and its position in the file."""

    blob: str
    size: int
    offset: int


class SentFile(TypedDict):
    """A file of a folder: its content as a blob, if it is not empty.

    Attributes
    ----------
    blob
        The digest of the whole file.
    size
        Its size in bytes.
    mode
        Who may read, write and execute it.
    part
        The part that is sent now, if not all of it.
    """

    blob: str
    size: int
    mode: int
    part: NotRequired[FilePart]


class SentFolder(TypedDict):
    """A folder to make on a node.

    Attributes
    ----------
    name
        Distinguishes it from others that are sent to the same place.
    target
        Where to put it, relative to the folder that ranks start in; ``~`` is the user's home.
    files
        Its files by their relative paths.
    links
        Its symbolic links and their targets.
    empty
        Its folders without anything that is sent, which a script may want to write into.
    force
        Whether to replace files of the node that are in the way.
    only
        The files that are sent now, if others were sent before or follow later.
    more
        Whether others follow later.
    """

    name: str
    target: str
    files: dict[str, SentFile]
    links: dict[str, str]
    empty: list[str]
    force: NotRequired[bool]
    only: NotRequired[list[str]]
    more: NotRequired[bool]


def blobs_of(folder: SentFolder) -> set[str]:
    """Return the digests of the blobs that a node needs for the part of a folder sent now."""
    files = [folder["files"][path] for path in folder.get("only", folder["files"])]
    return {file.get("part", file)["blob"] for file in files if file["size"]}


def portions_of(folders: Iterable[SentFolder]) -> set[str]:
    """Return the digests of the blobs that are not needed any more once folders are written.

    A folder is sent in portions if a node may not have room for all of its blobs at once.
    """
    return {key for each in folders if "only" in each for key in blobs_of(each)}


def record_folder(folder: SentFolder) -> PurePosixPath:
    """Return the folder of the record of what was sent last.

    That is the one that ranks start in for all that is sent there: programs list the files of their
    data, and have to find those of the user alone.
    """
    target = PurePosixPath(folder["target"])
    is_elsewhere = target.is_absolute() or ".." in target.parts or folder["target"][:1] == "~"
    return target if is_elsewhere else PurePosixPath()


def record_path(folder: SentFolder) -> PurePosixPath:
    """Return the path of the record of what was sent last: ``{path: [digest, time, size]}``.

    Times are modification times on the node, in nanoseconds since the epoch.
    """
    above = record_folder(folder)
    target = PurePosixPath(folder["target"]).relative_to(above)
    mark = hashlib.sha256(bytes(target)).hexdigest()[:12]
    return above / f".sky-sent-{folder['name']}-{mark}.json"


def unfinished_name(name: str, file: SentFile) -> str:
    """Return the name of a file of which parts are still missing."""
    return f".{short_name(name)}.{file['blob'][:16]}.part"


def short_name(name: str) -> str:
    """Return a name that leaves room for additions, and is no other file's."""
    encoded = os.fsencode(name)
    if len(encoded) <= _SHORT:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[:_SHORT].decode(errors='ignore')}~{digest}"


_SHORT = 100  # bytes of 255
_OTHERS = 0o077
_ENTERED = 0o011


class FolderModes:
    """The modes of the folders below one, each looked up once.

    Parameters
    ----------
    root
        The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[PurePosixPath, int] = {}

    def above(self, name: str) -> Iterator[int]:
        """Yield the modes of the folders that lead from the root to a file."""
        for folder in PurePosixPath(name).parents[:-1]:
            if folder not in self._known:
                self._known[folder] = (self._root / folder).stat().st_mode
            yield self._known[folder]


def open_to(mode: int, folders: Iterable[int]) -> int:
    """Return the mode of a file, without those whom the folders that it is in keep out."""
    for folder in folders:
        mode &= ~((~folder & _ENTERED) * 0o7)
    return mode & 0o777


def mode_of_new(source: int) -> int:
    """Return the mode to make a copy with; the umask takes away what the user lets nobody do."""
    return (source & 0o777) | 0o600


def mode_of_copy(here: int, source: int) -> int:
    """Return the mode of a copy from before: nobody else may do more with it than at the source."""
    return here & (source | ~_OTHERS) | source & 0o100
