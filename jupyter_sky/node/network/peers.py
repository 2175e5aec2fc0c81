"""The way between agents: TLS, on which both sides show a certificate of their cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from jupyter_sky.transport.frames import (
    LARGEST_MESSAGE,
    PREFIX,
    Message,
    ProtocolError,
    decode_message,
    encode,
)

REACH_WITHIN = 3.0
"""Seconds for a connection to a peer."""

_BUFFER = 4 * 1024 * 1024


class Stream:
    """A connection to a peer, which carries frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message, payload: memoryview | None = None) -> None:
        """Send a frame, as soon as there is room for it."""
        self._writer.write(encode(message, payload.nbytes if payload else 0))
        if payload:
            self._writer.write(payload)
        await self._writer.drain()

    async def receive(self, largest: int = 0) -> tuple[Message, bytes]:
        """Return the next frame; ``OSError`` at the end of the connection.

        Parameters
        ----------
        largest
            Bytes that a payload may have.
        """
        try:
            message_size, size = PREFIX.unpack(await self._reader.readexactly(PREFIX.size))
            if message_size > LARGEST_MESSAGE or size > largest:
                raise ProtocolError(f"a frame of {message_size} and {size} bytes is too large")
            message = decode_message(await self._reader.readexactly(message_size))
            return message, await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the peer hung up") from None

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


class Peers:
    """The other agents of a cluster, and the door for them.

    Parameters
    ----------
    folder
        Where the agent's files are.
    credentials
        ``authority``, ``certificate`` and ``key``, as PEM.
    serve
        Called for each peer that comes, until it returns.

    Attributes
    ----------
    authority
        The certificates of those who sign for agents of the cluster, as PEM.
    """

    def __init__(
        self,
        folder: Path,
        credentials: dict[str, str],
        serve: Callable[[Stream], Awaitable[None]],
    ) -> None:
        # The library reads certificates from files only.
        path = folder / "peers.pem"
        with open(path, "w", opener=_private) as file:
            file.write(credentials["certificate"] + credentials["key"])
        self._server = self._context(ssl.PROTOCOL_TLS_SERVER, path, credentials["authority"])
        self._client = self._context(ssl.PROTOCOL_TLS_CLIENT, path, credentials["authority"])
        self.authority: str = credentials["authority"]
        self._serve = serve

    def trust(self, authority: str) -> None:
        """Let in, and believe, those as well whom another authority has signed for."""
        for context in (self._server, self._client):
            context.load_verify_locations(cadata=authority)
        self.authority += authority

    def _context(self, protocol: int, path: Path, authority: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Whoever has a certificate of the cluster is meant, wherever it is.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority)
        context.load_cert_chain(path)
        return context

    async def listen(self, addr: str) -> int:
        """Open the door and return its port."""
        server = await asyncio.start_server(
            self._welcome, addr, 0, ssl=self._server, limit=_BUFFER, backlog=256
        )
        return int(server.sockets[0].getsockname()[1])

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer)
        with contextlib.suppress(OSError, ProtocolError):
            await self._serve(stream)
        stream.close()

    @contextlib.asynccontextmanager
    async def connect(self, addr: str, port: int) -> AsyncIterator[Stream]:
        """Be connected to a peer; ``OSError`` when it is not there."""
        try:
            async with asyncio.timeout(REACH_WITHIN):
                reader, writer = await asyncio.open_connection(
                    addr, port, ssl=self._client, limit=_BUFFER
                )
        except TimeoutError:
            raise OSError(f"no answer within {REACH_WITHIN:.0f} s") from None
        stream = Stream(reader, writer)
        try:
            yield stream
        finally:
            stream.close()

    async def ask(self, peer: dict[str, Any], message: Message) -> Message | None:
        """Return a peer's answer, or ``None`` when it cannot be reached."""
        try:
            return await self._ask(peer, message)
        except (OSError, ProtocolError, TimeoutError):
            return None

    async def _ask(self, peer: dict[str, Any], message: Message) -> Message:
        async with self.connect(peer["addr"], peer["port"]) as stream:
            # TLS 1.3 lets a client believe that it is welcome before it is: only an answer tells.
            await stream.send(message)
            answer, _ = await asyncio.wait_for(stream.receive(), REACH_WITHIN)
            return answer

    async def reach(self, peers: list[dict[str, Any]]) -> dict[int, str]:
        """Try to reach peers, and return for the node of each that cannot be what is wrong."""

        async def attempt(peer: dict[str, Any]) -> str:
            try:
                await self._ask(peer, {"op": "hello"})
            except (OSError, ProtocolError, TimeoutError) as error:
                return getattr(error, "strerror", None) or str(error) or "no answer"
            return ""

        said = await asyncio.gather(*map(attempt, peers))
        return {peer["node"]: text for peer, text in zip(peers, said, strict=True) if text}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
