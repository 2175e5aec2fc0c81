"""A socket here that leads to a port of a node, and stays open while links come and go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.ports.requests import PIECE, PIECES_AT_ONCE
from jupyter_sky.transport.tasks import BackgroundTasks, cancel_all

_carried = BackgroundTasks()


async def open_port(connection: Connection, addr: str, port: int) -> socket.socket:
    """Return a socket that leads to an address, as a node reaches it.

    The node keeps its end however long there is no link, and what both sides send waits.

    Raises
    ------
    OSError
        If the node is not reached, or nothing listens there.
    """
    try:
        answer = await connection.request("open_port", addr=addr, port=port)
    except SkyError as error:
        raise OSError(f"{connection.name}: {error}") from None
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs, limit=PIECE)
    _carried.spawn(_PortSocket(connection, answer["connection"], reader, writer).carry())
    return ours


class _PortSocket:
    """Carries what goes over a socket to a node, and back."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._connection = connection
        self._number = number
        self._reader = reader
        self._writer = writer

    async def carry(self) -> None:
        """Carry until either side ends, which closes the other."""
        ways = [asyncio.ensure_future(each) for each in (self._upstream(), self._downstream())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(ways)
            self._writer.close()
            with contextlib.suppress(SkyError):
                await self._request("close_port")

    async def _upstream(self) -> None:
        under_way: deque[asyncio.Task[Message]] = deque()
        try:
            while data := await self._reader.read(PIECE):
                if len(under_way) == PIECES_AT_ONCE:
                    await under_way.popleft()
                under_way.append(asyncio.ensure_future(self._request("write_port", data=data)))
            await asyncio.gather(*under_way)
        finally:
            await cancel_all(under_way)

    async def _downstream(self) -> None:
        asked: deque[asyncio.Task[bytes]] = deque()
        count = 0
        try:
            while True:
                while len(asked) < PIECES_AT_ONCE:
                    asked.append(asyncio.ensure_future(self._piece(count)))
                    count += 1
                if not (data := await asked.popleft()):
                    return
                self._writer.write(data)
                await self._writer.drain()
        finally:
            await cancel_all(asked)

    async def _piece(self, number: int) -> bytes:
        while True:
            answer = await self._request("read_port", piece=number)
            data: bytes | None = answer["data"]
            if data is not None:
                return data

    async def _request(self, op: str, **fields: object) -> Message:
        # Neither time counts: a port may take nothing for as long, and links come back.
        return await self._connection.request(
            op, connection=self._number, within=None, link_within=None, **fields
        )
