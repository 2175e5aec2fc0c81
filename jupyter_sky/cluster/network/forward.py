"""A port of this computer that leads to one of a node, over the cluster's own connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from jupyter_sky.cluster.network import handshake
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.ports.port_socket import open_port
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.event_loop import call, wait
from jupyter_sky.transport.ports.requests import PIECE, TAKEN_WITHIN

_PAUSE = 0.5  # seconds between two attempts to connect
_BUFFER = PIECE  # bytes of a connection that are under way, after which its sender waits
_HELLO_WITHIN = 10.0  # seconds


class Forward:
    """A port of this computer's loopback interface, open until it is closed.

    All users of this computer can connect to it. So either the server on the node asks who they
    are, or there is a key, and nothing is carried for clients that do not know it.

    Parameters
    ----------
    node
        Returns the connection to the node that reaches the address.
    addr, port
        Where connections lead to, as the node reaches it.
    patience
        Seconds that a client waits until something listens there.
    key
        What clients have to know, see `handshake`; empty for no handshake.
    secure
        The TLS settings for the node's end; clients here send and receive plain text. ``None`` to
        carry everything as it is.

    Attributes
    ----------
    port
        The port here.
    """

    def __init__(
        self,
        node: Callable[[], Connection],
        addr: str,
        port: int,
        patience: float = 0.0,
        key: bytes = b"",
        secure: ssl.SSLContext | None = None,
    ) -> None:
        self._node = node
        self._to = addr, port
        self._patience = patience
        self._key = key
        self._secure = secure
        self._open: set[asyncio.StreamWriter] = set()
        self._server = wait(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Close it, with the connections over it."""
        call(self._close)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=_BUFFER)

    def _close(self) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.close()

    async def _connect(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while True:
            try:
                return await open_port(self._node(), *self._to)
            except (OSError, SkyError):  # also where a rank is gone: another may take its place
                if loop.time() >= end:
                    raise
            await asyncio.sleep(_PAUSE)

    async def _is_known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if not self._key:
            return True
        try:
            async with asyncio.timeout(_HELLO_WITHIN):
                said = await reader.readexactly(handshake.HELLO)
        except (TimeoutError, asyncio.IncompleteReadError):
            return False
        answer = handshake.answer(self._key, said)
        if answer is not None:
            writer.write(answer)
        return answer is not None

    async def _open_there(
        self, sock: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._secure is None:
            return await asyncio.open_connection(sock=sock, limit=_BUFFER)
        # Certificates of a cluster name its members, not addresses.
        return await asyncio.open_connection(
            sock=sock, ssl=self._secure, server_hostname="", limit=_BUFFER
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if not await self._is_known(reader, writer):
                return
            sock = await self._connect()
            there_reader, there_writer = await self._open_there(sock)
            self._open.add(there_writer)
            try:
                await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
            finally:
                self._open.discard(there_writer)
                there_writer.close()
        except (OSError, SkyError):
            pass  # the client sees its connection end
        finally:
            self._open.discard(writer)
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy a stream, as fast as the other side takes it; its end closes the other side too."""
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TAKEN_WITHIN):
                    await writer.drain()
    writer.close()
