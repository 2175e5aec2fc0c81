"""Sends bulk data to a client: compressed if that pays, and never faster than the link takes it.

So output of ranks, and the end of a run, never have to wait behind megabytes.
"""

from __future__ import annotations

import asyncio

from jupyter_sky.serialization.blobs import pieces
from jupyter_sky.transport.compression import Compressor
from jupyter_sky.transport.flow import Flow
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link


class BulkSender:
    """Sends blobs and parts of files to one client, which acknowledges them.

    Parameters
    ----------
    link
        The link to the client.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._flow = Flow()
        self._of_files = Compressor(self._flow.rate)
        # One piece is compressed while another waits to be sent; with more, the decision to
        # compress would be made too early.
        self._turns = asyncio.Semaphore(2)

    async def send_blob(self, request: int, data: memoryview, start: int) -> None:
        """Send a blob in pieces from an offset on, in answer to the request with this number."""
        compressor = Compressor(self._flow.rate)
        for offset, piece in pieces(data[start:]):
            header = {"piece": request, "offset": start + offset}
            is_last = start + offset + piece.nbytes == data.nbytes
            await self._send(header, piece, compressor, asks=is_last)

    async def send_parts(self, request: int, parts: list[bytes | None]) -> None:
        """Answer a request with parts of files, one after the other."""
        sizes = [None if part is None else len(part) for part in parts]
        data = parts[0] if len(parts) == 1 else b"".join(filter(None, parts))
        header = {"re": request, "sizes": sizes}
        await self._send(header, memoryview(data or b""), self._of_files, asks=True)

    async def _send(
        self, header: Message, data: memoryview, compressor: Compressor, asks: bool
    ) -> None:
        async with self._turns:
            about, packed = await compressor.pack(data)
            size = memoryview(packed).nbytes
            if not await self._flow.wait_for_room(size, self._link, self._ask):
                return
            if self._flow.on_leaving(size) or asks:
                about = {**about, "ack": self._flow.take_unasked()}
            self._link.send({**header, **about}, packed)
            await self._link.drain()

    def _ask(self) -> None:
        if count := self._flow.take_unasked():
            self._link.send({"ack": count})

    def on_arrived(self, count: int) -> None:
        """Note that the client has acknowledged further bytes."""
        self._flow.on_arrived(count)

    def close(self) -> None:
        """Wake those who wait to send, since the link is closed."""
        self._flow.on_lost()
