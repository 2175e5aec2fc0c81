"""Downloads of blobs from a node, into memory that is allocated first; broken ones are resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jupyter_sky.cluster.network import incoming
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.link import Link

FETCH_WITHIN = 120.0
"""Seconds for the next piece of what is fetched: a slow link takes that long for one."""


@dataclass
class _Download:
    """A blob that is being received, and how many bytes of it have come."""

    whole: memoryview
    received: int = 0

    def place(self, offset: int, size: int) -> memoryview:
        """Return where the next piece belongs.

        Raises
        ------
        ProtocolError
            When it is not the next one.
        """
        if offset != self.received or offset + size > len(self.whole):
            raise ProtocolError(f"a payload of {size} bytes was not asked for")
        return self.whole[offset : offset + size]


class Downloads:
    """The blobs that one connection is receiving, each by the number of its request.

    Parameters
    ----------
    link
        Returns the present link; ``None`` while there is none.
    """

    def __init__(self, link: Callable[[], Link | None]) -> None:
        self._link = link
        self._downloads: dict[int, _Download] = {}

    @property
    def numbers(self) -> Iterable[int]:
        """The requests that are not answered in full yet."""
        return self._downloads.keys()

    def begin(self, number: int, key: str, size: int) -> Message:
        """Allocate memory for a blob; return the request for it."""
        self._downloads[number] = _Download(memoryview(bytearray(size)))
        return {"op": "fetch", "blob": key, "size": size, "offset": 0}

    def resume(self, message: Message) -> Message:
        """Return a request to send again, changed to ask only for the rest of its blob."""
        if download := self._downloads.get(message["id"]):
            message["offset"] = download.received
        return message

    def destination(self, message: Message, size: int) -> memoryview:
        """Return where the payload of a message is to be written.

        Raises
        ------
        ProtocolError
            When it was not asked for.
        """
        if size > PIECE or not {"piece", "re"} & message.keys():
            raise ProtocolError(f"a payload of {size} bytes was not asked for")
        download = self._find(message) if "piece" in message else None
        # Answers, compressed pieces, and pieces of a blob that was given up get their own memory.
        if download is None or "whole" in message:
            return memoryview(bytearray(size))
        return download.place(message["offset"], size)

    def acknowledge(self, message: Message) -> None:
        """Acknowledge received bytes, if the message asks for it, as large transfers do."""
        if isinstance(size := message.get("ack"), int) and (link := self._link()):
            link.send({"op": "got", "size": size})

    def on_piece(self, message: Message, payload: memoryview) -> bool:
        """Count a piece that has arrived; tell the node if its blob is not wanted any more.

        Returns
        -------
        bool
            Whether that was the last of its blob: no word of the node is needed then.

        Raises
        ------
        ProtocolError
            When it was not asked for, or is damaged.
        """
        download = self._find(message)
        if download is None:
            if link := self._link():
                link.send({"op": "unwanted", "id": message["piece"]})
            return False
        if "whole" in message:
            piece = expand(message, payload, PIECE)
            download.place(message["offset"], piece.nbytes)[:] = piece
            payload = piece
        download.received += payload.nbytes
        return download.received == len(download.whole)

    def _find(self, message: Message) -> _Download | None:
        """Return what a piece belongs to; ``None`` if that is not wanted any more."""
        return self._downloads.get(incoming.piece(message))

    def end(self, number: int) -> memoryview:
        """Return a blob as memory that can be written to, and forget it.

        Raises
        ------
        SkyError
            When not all of it has come.
        """
        download = self._downloads.pop(number)
        if download.received < (size := len(download.whole)):
            raise SkyError(f"only {format_bytes(download.received)} of {format_bytes(size)} came")
        return download.whole

    def give_up(self, number: int) -> None:
        """Forget a blob, if it is not all there."""
        self._downloads.pop(number, None)
