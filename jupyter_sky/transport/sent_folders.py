"""How a folder is sent to nodes, and the names of files that a node keeps about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NotRequired, TypedDict


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
    executable
        Whether the user may execute it.
    part
        The part that is sent now, if not all of it.
    """

    blob: str
    size: int
    executable: bool
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


def record_name(folder: SentFolder) -> str:
    """Return the name of the record of what was sent last: ``{path: [digest, time, size]}``.

    Times are modification times on the node, in nanoseconds since the epoch.
    """
    return f".sky-sent-{folder['name']}.json"


def unfinished_name(name: str, file: SentFile) -> str:
    """Return the name of a file of which parts are still missing."""
    return f".{name}.{file['blob'][:16]}.part"
