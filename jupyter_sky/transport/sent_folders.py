"""A folder of the notebook's computer as it is sent, and the names that a node keeps beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NotRequired, TypedDict


class FilePart(TypedDict):
    """A part of a file as a blob, and where in the file it begins."""

    blob: str
    size: int
    offset: int


class SentFile(TypedDict):
    """A file of a folder: its content as a blob, if it is not empty.

    Attributes
    ----------
    blob
        The digest of all of it.
    size
        Its bytes.
    executable
        Whether the user may execute it.
    part
        What comes of it now, if that is not all.
    """

    blob: str
    size: int
    executable: bool
    part: NotRequired[FilePart]


class SentFolder(TypedDict):
    """A folder as it is to be on a node.

    Attributes
    ----------
    name
        Tells it from others that are sent to the same place.
    target
        Where it is to be, from the folder that ranks begin in; ``~`` is the user's home.
    files
        Its files by their paths in it.
    links
        Its symbolic links, and where they lead.
    force
        Whether files of the node that are in the way are replaced.
    only
        The files that come now, if others have come before or come later.
    more
        Whether others come later.
    """

    name: str
    target: str
    files: dict[str, SentFile]
    links: dict[str, str]
    force: NotRequired[bool]
    only: NotRequired[list[str]]
    more: NotRequired[bool]


def blobs_of(folder: SentFolder) -> set[str]:
    """Return the digests of the blobs that a node needs to lay down what comes of a folder now."""
    files = [folder["files"][path] for path in folder.get("only", folder["files"])]
    return {file.get("part", file)["blob"] for file in files if file["size"]}


def portions_of(folders: Iterable[SentFolder]) -> set[str]:
    """Return the digests of the blobs of which nothing is left to do when folders are laid down.

    What is sent in portions is more than a node may have room for at once.
    """
    return {key for each in folders if "only" in each for key in blobs_of(each)}


def record_name(folder: SentFolder) -> str:
    """Return the name of the file that says what was sent last: ``{path: [digest, time, size]}``.

    Times are nanoseconds since the epoch, as the file system dates the file there.
    """
    return f".sky-sent-{folder['name']}.json"


def unfinished_name(name: str, file: SentFile) -> str:
    """Return what a file is called as long as parts of it are still to come."""
    return f".{name}.{file['blob'][:16]}.part"
