"""Bulk data on its way to a client: compressed where that pays, and never more than flows off.

What a rank prints meanwhile, and the end of a run, need not wait behind megabytes then.
"""

from __future__ import annotations

import asyncio

from jupyter_sky.serialization.blobs import pieces
from jupyter_sky.transport.compression import Compressor
from jupyter_sky.transport.flow import Flow
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link


class BulkSender:
    """Sends blobs and parts of files to one client, which acknowledges what has arrived.

    Parameters
    ----------
    link
        The link to it.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._flow = Flow()
        self._of_files = Compressor(self._flow.rate)
        # One is compressed while another one waits to leave; more would be decided on too early.
        self._turns = asyncio.Semaphore(2)

    async def send_blob(self, request: int, data: memoryview, start: int) -> None:
        """Send a blob in pieces, from an offset on; the request for it has this number."""
        compressor = Compressor(self._flow.rate)
        for offset, piece in pieces(data[start:]):
            header = {"piece": request, "offset": start + offset}
            is_last = start + offset + piece.nbytes == data.nbytes
            await self._send(header, piece, compressor, asks=is_last)

    async def send_parts(self, request: int, parts: list[bytes | None]) -> None:
        """Answer a request with parts of files, one behind the other."""
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
        """Take the client's word that so many bytes more have arrived."""
        self._flow.on_arrived(count)

    def close(self) -> None:
        """Have nobody wait for a link that is closed."""
        self._flow.on_lost()
