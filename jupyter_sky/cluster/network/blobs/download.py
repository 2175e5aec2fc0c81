"""Downloads of blobs from a node: into memory that is there, on from where a link broke."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.frames import Message, ProtocolError


@dataclass
class _Download:
    """A blob that is being received, and how much of it is there."""

    whole: memoryview
    received: int = 0

    def expects(self, offset: int, size: int) -> bool:
        """Return whether this is where the next piece belongs."""
        return offset == self.received and offset + size <= len(self.whole)


class Downloads:
    """The blobs that one connection is receiving, by the number of the request for each."""

    def __init__(self) -> None:
        self._downloads: dict[int, _Download] = {}

    def begin(self, number: int, key: str, size: int) -> Message:
        """Make room for a blob; return the request for it."""
        self._downloads[number] = _Download(memoryview(bytearray(size)))
        return {"op": "fetch", "blob": key, "size": size, "offset": 0}

    def resume(self, message: Message) -> Message:
        """Return a request that is sent again, which asks for what is not there yet."""
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
        download = self._downloads.get(message.get("piece", 0))
        if size > PIECE or (download and not download.expects(message["offset"], size)):
            raise ProtocolError(f"a payload of {size} bytes was not asked for")
        if download is None:  # it was given up meanwhile
            return memoryview(bytearray(size))
        return download.whole[message["offset"] : message["offset"] + size]

    def on_piece(self, message: Message, size: int) -> None:
        """Count a piece that has arrived."""
        if download := self._downloads.get(message["piece"]):
            download.received += size

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
