"""Connections between the agents of a cluster: mutual TLS with certificates of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.transport.frames import (
    LARGEST_MESSAGE,
    PREFIX,
    Message,
    ProtocolError,
    decode_message,
    encode,
)
from jupyter_sky.transport.protocol.topology import AgentAddress

REACH_WITHIN = 3.0
"""Seconds for a connection to a peer."""

_BUFFER = 4 * 1024 * 1024


class Stream:
    """A connection to another agent, which carries frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message, payload: memoryview | None = None) -> None:
        """Send a frame; returns when there is room for the next."""
        self._writer.write(encode(message, payload.nbytes if payload else 0))
        if payload:
            self._writer.write(payload)
        await self._writer.drain()

    async def receive(self, largest: int = 0) -> tuple[Message, bytes]:
        """Return the next frame.

        Parameters
        ----------
        largest
            Bytes that a payload may have.

        Raises
        ------
        OSError
            At the end of the connection.
        ProtocolError
            When the frame is too large, or no frame.
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
        """Close the connection."""
        self._writer.close()


class Peers:
    """The other agents of a cluster, and the port at which they reach this one.

    An agent that is alone in its cluster has no credentials, and neither peers nor a port.

    Parameters
    ----------
    folder
        Where the agent's files are.
    serve
        Called for each peer that connects; the connection ends when it returns.

    Attributes
    ----------
    authority
        The certificates of those who sign for agents of the cluster, as PEM; empty for an agent
        that is alone.
    """

    def __init__(self, folder: Path, serve: Callable[[Stream], Awaitable[None]]) -> None:
        self.authority = ""
        self._folder = folder
        self._serve = serve
        self._contexts: _Contexts | None = None
        self._others: list[AgentAddress] = []

    # Who may connect

    def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Take ``authority``, ``certificate`` and ``key`` of this agent, as PEM."""
        # The ssl module reads certificates from files only.
        path = self._folder / "peers.pem"
        with open(path, "w", opener=_private) as file:
            file.write(credentials["certificate"] + credentials["key"])
        self.authority = credentials["authority"]
        self._contexts = _Contexts(
            server=_context(ssl.PROTOCOL_TLS_SERVER, path, self.authority),
            client=_context(ssl.PROTOCOL_TLS_CLIENT, path, self.authority),
        )

    def trust(self, authority: str) -> None:
        """Trust those agents as well for whom another authority has signed."""
        contexts = self._known_contexts()
        for context in (contexts.server, contexts.client):
            context.load_verify_locations(cadata=authority)
        self.authority += authority

    async def listen(self, addr: str) -> int:
        """Listen to other agents at a free port, and return it."""
        server = await asyncio.start_server(
            self._on_connect,
            addr,
            0,
            ssl=self._known_contexts().server,
            limit=_BUFFER,
            backlog=256,
        )
        return int(server.sockets[0].getsockname()[1])

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer)
        with contextlib.suppress(OSError, ProtocolError):
            await self._serve(stream)
        stream.close()

    def _known_contexts(self) -> _Contexts:
        if self._contexts is None:
            raise ConnectionError("this agent is alone in its cluster")
        return self._contexts

    # Talking to them

    def set_others(self, nodes: Iterable[AgentAddress]) -> None:
        """Say which nodes of the cluster are those of other agents."""
        # A machine can stand for several nodes; its agent is asked once.
        self._others = [*{(node["addr"], node["port"]): node for node in nodes}.values()]

    async def ask_all(self, message: Message) -> list[Message]:
        """Ask all other agents the same, and return the answers of those that can be reached."""
        if self._contexts is None:
            return []
        answers = await asyncio.gather(*(self._try_to_ask(node, message) for node in self._others))
        return [answer for answer in answers if answer]

    async def reach(self, peers: Sequence[AgentAddress]) -> dict[int, str]:
        """Try to reach peers, and return for the node of each that cannot be what is wrong.

        Raises
        ------
        ConnectionError
            When this agent is alone, so that it cannot tell.
        """
        return await self.tell(peers, {"op": "hello"})

    async def tell(self, peers: Sequence[AgentAddress], message: Message) -> dict[int, str]:
        """Tell peers something, and return for the node of each that did not hear it why.

        Raises
        ------
        ConnectionError
            When this agent is alone, so that it cannot tell.
        """
        self._known_contexts()

        async def attempt(peer: AgentAddress) -> str:
            try:
                await self._ask(peer, message)
            except (OSError, ProtocolError, TimeoutError) as error:
                return getattr(error, "strerror", None) or str(error) or "no answer"
            return ""

        said = await asyncio.gather(*map(attempt, peers))
        return {peer["node"]: text for peer, text in zip(peers, said, strict=True) if text}

    async def have_ended(self) -> bool:
        """Return whether the machines of all other agents answer, and none has its agent any more.

        What does not answer may be there, behind a network that is broken.
        """
        for node in self._others:
            try:
                async with asyncio.timeout(REACH_WITHIN):
                    _, writer = await asyncio.open_connection(node["addr"], node["port"])
            except ConnectionRefusedError:
                continue
            except (OSError, TimeoutError):
                return False
            writer.close()
            return False
        return bool(self._others)

    async def _try_to_ask(self, peer: AgentAddress, message: Message) -> Message | None:
        try:
            return await self._ask(peer, message)
        except (OSError, ProtocolError, TimeoutError):
            return None

    async def _ask(self, peer: AgentAddress, message: Message) -> Message:
        async with self.connect(peer) as stream:
            # In TLS 1.3 a client is connected before the server has looked at its certificate: only
            # an answer says that it was let in.
            await stream.send(message)
            answer, _ = await asyncio.wait_for(stream.receive(), REACH_WITHIN)
            return answer

    @contextlib.asynccontextmanager
    async def connect(self, peer: AgentAddress) -> AsyncIterator[Stream]:
        """Connect to a peer; ``OSError`` when it is not there."""
        try:
            async with asyncio.timeout(REACH_WITHIN):
                reader, writer = await asyncio.open_connection(
                    peer["addr"], peer["port"], ssl=self._known_contexts().client, limit=_BUFFER
                )
        except TimeoutError:
            raise OSError(f"no answer within {REACH_WITHIN:.0f} s") from None
        stream = Stream(reader, writer)
        try:
            yield stream
        finally:
            stream.close()


@dataclass(frozen=True)
class _Contexts:
    """The TLS settings of an agent, for connections to it and from it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def _context(protocol: int, path: Path, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Any agent with a certificate of the cluster will do, at whatever address it is.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    context.load_cert_chain(path)
    return context


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
