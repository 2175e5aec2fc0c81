"""Requests of notebooks and ranks to the process that keeps the volumes of a node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from jupyter_sky.transport.protocol.shape import Size

MARKER = "checkpoint.json"
"""The file that says which save of a checkpoint holds."""


class SessionToken(TypedDict):
    """Credentials of a bucket that expire; they are held in memory alone.

    Attributes
    ----------
    fields
        The credentials, by the names that the bucket's driver uses.
    expires
        When they expire, in seconds since the epoch; ``None`` if that is not known.
    """

    fields: dict[str, str]
    expires: float | None


class VolumeOrder(TypedDict):
    """A volume for a node to make.

    Attributes
    ----------
    url
        Where the data is, like ``s3://bucket/prefix``.
    path
        Where ranks find it.
    read_only
        Whether nothing is written back.
    limit
        Bytes of the node's disk that fetched files may take up; 0 for half of the free space.
    options
        Options of the driver that are not secret, like a region.
    token
        Credentials; ``None`` for the node's own.
    """

    url: str
    path: str
    read_only: bool
    limit: int
    options: dict[str, Any]
    token: SessionToken | None


class MountRequest(TypedDict):
    """``mount``: make volumes, or give existing ones new credentials."""

    volumes: list[VolumeOrder]


class MountAnswer(TypedDict):
    """The answer to ``mount``.

    Attributes
    ----------
    trouble
        Why it failed, in words; empty if it did not.
    notes
        Sentences for the user about what was there before.
    """

    trouble: str
    notes: list[str]


class WrittenVolume(TypedDict):
    """What became of the files of a volume.

    Attributes
    ----------
    url, path
        Identifies the volume.
    files, size
        How many files were written back, and their total bytes.
    left
        Names of files that could not be written back, and exist only on this node.
    trouble
        Why, in words, or what could not be read; empty if nothing went wrong.
    """

    url: str
    path: str
    files: Size
    size: Size
    left: list[str]
    trouble: str


class WriteBackAnswer(TypedDict):
    """The answer to ``write_back``: what became of each volume."""

    volumes: list[WrittenVolume]


class VolumeState(TypedDict):
    """The state of a volume.

    Attributes
    ----------
    url, path, read_only, limit
        As in `VolumeOrder`.
    files, size
        How many files it has, and their total bytes.
    here
        Bytes of the files that are on the node's disk.
    fetched
        How many times a file was fetched since it was made.
    unwritten
        Names of files that exist only on this node.
    """

    url: str
    path: str
    read_only: bool
    limit: Size
    files: Size
    size: Size
    here: Size
    fetched: Size
    unwritten: list[str]


class VolumesAnswer(TypedDict):
    """The answer to ``volumes``: the state of each."""

    volumes: list[VolumeState]


def has_only_markers_left(volumes: Iterable[WrittenVolume]) -> bool:
    """Return whether markers of checkpoints are all that was not written, and there are some.

    They wait for what other nodes have yet to write, so that it is worth trying again.
    """
    left = [name for each in volumes for name in each["left"]]
    return bool(left) and all(name.rpartition("/")[2] == MARKER for name in left)
