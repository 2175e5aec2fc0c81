"""Requests of a kernel to an agent for connections to ports that the node reaches."""

from __future__ import annotations

from typing import NotRequired, TypedDict

PIECE = 256 * 1024
"""Most bytes of a piece, both ways."""

PIECES_AT_ONCE = 4
"""Pieces each way that are under way: more would keep what cells print waiting on a slow link."""

TAKEN_WITHIN = 10.0
"""Seconds after which a little more is taken of what a program sends, also if nothing can leave.

A program may end a connection of which nothing was taken for long: Dask does after 30 seconds.
"""


class OpenPortRequest(TypedDict):
    """``open_port``: connect to an address as the node reaches it; agents add the ``client``."""

    addr: str
    port: int
    client: NotRequired[str]


class OpenPortAnswer(TypedDict):
    """The number of the connection."""

    connection: int


class PortRequest(TypedDict):
    """``close_port``: close a connection."""

    connection: int


class ReadPortRequest(TypedDict):
    """``read_port``: return a piece of what comes over a connection.

    The same piece may be asked for again, and is the same then.

    Attributes
    ----------
    connection
        The number of the connection.
    piece
        The number of the piece, from 0.
    """

    connection: int
    piece: int


class ReadPortAnswer(TypedDict):
    """The piece: empty at the end, and ``None`` if nothing has come for some seconds."""

    data: bytes | None


class WritePortRequest(TypedDict):
    """``write_port``: send bytes over a connection, after those of earlier requests."""

    connection: int
    data: bytes
