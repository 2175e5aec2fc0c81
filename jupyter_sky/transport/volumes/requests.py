"""What a notebook and ranks ask of the process that keeps the volumes of a node."""

from __future__ import annotations

from typing import Any, TypedDict


class SessionToken(TypedDict):
    """Credentials of a bucket that expire; they are held in memory alone.

    Attributes
    ----------
    fields
        The credentials, by the names that the driver of the bucket gives them.
    expires
        When they end, in seconds since the epoch; ``None`` where that is not known.
    """

    fields: dict[str, str]
    expires: float | None


class VolumeOrder(TypedDict):
    """A volume as a node makes it.

    Attributes
    ----------
    url
        Where the data is, like ``s3://bucket/prefix``.
    path
        Where ranks find it.
    read_only
        Whether nothing is written back.
    limit
        Bytes of the node's disk that what was read may take up; 0 for half of what is free.
    options
        What the driver has to know that is no secret, like a region.
    token
        Credentials; ``None`` for those that the node has itself.
    """

    url: str
    path: str
    read_only: bool
    limit: int
    options: dict[str, Any]
    token: SessionToken | None


class MountRequest(TypedDict):
    """``mount``: make volumes, or give those that are there new credentials."""

    volumes: list[VolumeOrder]


class MountAnswer(TypedDict):
    """The answer to ``mount``.

    Attributes
    ----------
    trouble
        Why it failed, in words; empty where it did not.
    notes
        What the user should know of what was there before, in sentences.
    """

    trouble: str
    notes: list[str]


class WrittenVolume(TypedDict):
    """What became of the files of a volume.

    Attributes
    ----------
    url, path
        Which volume it is.
    files, size
        How many files were written back, and their bytes.
    left
        Names of files that could not be, and are on this node alone.
    trouble
        Why, in words; or what could not be read. Empty where nothing went wrong.
    """

    url: str
    path: str
    files: int
    size: int
    left: list[str]
    trouble: str


class WriteBackAnswer(TypedDict):
    """The answer to ``write_back``: what became of each volume."""

    volumes: list[WrittenVolume]


class VolumeState(TypedDict):
    """What a volume is made of at this moment.

    Attributes
    ----------
    url, path, read_only, limit
        As in `VolumeOrder`.
    files, size
        How many files it has, and their bytes.
    here
        Bytes of those that are on the node's disk.
    fetched
        How many files were fetched since it was made, each time that they were.
    unwritten
        Names of files that are on this node alone.
    """

    url: str
    path: str
    read_only: bool
    limit: int
    files: int
    size: int
    here: int
    fetched: int
    unwritten: list[str]


class VolumesAnswer(TypedDict):
    """The answer to ``volumes``: the state of each."""

    volumes: list[VolumeState]
