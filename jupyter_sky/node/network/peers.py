"""Connections between the agents of a cluster: mutual TLS with the cluster's certificates."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.node.network.acceptor import Acceptor
from jupyter_sky.paths import private_opener
from jupyter_sky.transport.certificates import fingerprint_of_der
from jupyter_sky.transport.frames import (
    LARGEST_MESSAGE,
    PREFIX,
    Message,
    ProtocolError,
    decode_message,
    encode,
)
from jupyter_sky.transport.protocol.topology import AgentAddress, NodePlace

REACH_WITHIN = 3.0
"""Seconds for a connection to a peer."""

HANDSHAKE_WITHIN = 10.0
"""Seconds for who connects to show a certificate of the cluster, and to say what it wants."""

MOST_STRANGERS = 64
"""Connections that have not shown a certificate yet; the oldest makes room for another."""

MOST_PEERS = 1024
"""Connections of other agents at a time."""

VANISHED_AFTER = 60
"""Seconds without a sign of life from its machine, after which a peer has vanished."""

_BUFFER = 4 * 1024 * 1024
_PROBES = 3
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class PeerStream:
    """A connection to another agent, which carries frames.

    Attributes
    ----------
    peer
        The fingerprint of the certificate that the other agent has shown.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.peer = fingerprint_of_der(shown)
        _break_if_vanished(writer.get_extra_info("socket"))

    async def send(self, message: Message, payload: memoryview | None = None) -> None:
        """Send a frame; return once there is room for the next."""
        self._writer.write(encode(message, payload.nbytes if payload else 0))
        if payload:
            self._writer.write(payload)
        await self._writer.drain()

    async def receive(self, largest: int = 0) -> tuple[Message, bytes]:
        """Return the next frame.

        Parameters
        ----------
        largest
            The most bytes that a payload may have.

        Raises
        ------
        OSError
            At the end of the connection.
        ProtocolError
            If the frame is too large or malformed.
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


class PeerAgents:
    """The other agents of a cluster, and the port on which they reach this one.

    An agent that is alone in its cluster has no credentials, and neither peers nor a port.

    Parameters
    ----------
    folder
        The folder of the agent's files.
    serve
        Called for each peer that connects; the connection is closed when it returns.
    handshake_within
        Seconds within which a peer must show a certificate of the cluster.

    Attributes
    ----------
    authority
        The certificates of the authorities of the cluster, in PEM; empty for an agent that is
        alone.
    """

    def __init__(
        self,
        folder: Path,
        serve: Callable[[PeerStream], Awaitable[None]],
        handshake_within: float = HANDSHAKE_WITHIN,
    ) -> None:
        self.authority = ""
        self._folder = folder
        self._serve = serve
        self._handshake_within = handshake_within
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._connected: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None
        self._contexts: _Contexts | None = None
        self._others: list[NodePlace] = []
        self._members: set[str] = set()

    # Who may connect

    def set_credentials(self, credentials: Mapping[str, Any]) -> None:
        """Set the credentials of this agent (`jupyter_sky.providers.mtls.Credentials`)."""
        # The ssl module reads certificates from files only.
        path = self._folder / "peers.pem"
        with open(path, "w", opener=private_opener) as file:
            file.write(credentials["certificate"] + credentials["key"])
        self.authority = credentials["authority"]
        self._members.update(credentials["peers"])
        self._contexts = _Contexts(
            server=_context(ssl.PROTOCOL_TLS_SERVER, path, self.authority),
            client=_context(ssl.PROTOCOL_TLS_CLIENT, path, self.authority),
        )

    def trust(self, authority: str, peers: Iterable[str]) -> None:
        """Accept further agents, whose certificates another authority has signed."""
        contexts = self._known_contexts()
        for context in (contexts.server, contexts.client):
            context.load_verify_locations(cadata=authority)
        self.authority += authority
        self._members.update(peers)

    async def listen(self, addr: str) -> int:
        """Listen to other agents on a free port, and return it."""
        family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        listener = socket.create_server((addr, 0), family=family, backlog=256)
        self._acceptor = Acceptor(listener, self._on_connect, self._drop_strangers)
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and close the connections of peers."""
        if self._acceptor:
            self._acceptor.close()
        for task in [*self._strangers, *self._connected]:
            task.cancel()

    def _on_connect(self, sock: socket.socket) -> None:
        if len(self._connected) >= MOST_PEERS:
            sock.close()
            return
        if len(self._strangers) >= MOST_STRANGERS:
            next(iter(self._strangers)).cancel()
        task = asyncio.get_running_loop().create_task(self._let_in(sock))
        self._strangers[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._connected.discard(task)

    def _drop_strangers(self) -> None:
        """Close the connections of those who have not shown a certificate."""
        for task in self._strangers:
            task.cancel()

    async def _let_in(self, sock: socket.socket) -> None:
        """Serve a connection, if it is from the cluster."""
        with contextlib.suppress(OSError, ProtocolError):
            try:
                stream = await self._greet(sock)
            finally:
                self._strangers.pop(_this_task(), None)
            self._connected.add(_this_task())
            try:
                # The authority has also signed for peers that have left.
                if stream.peer in self._members:
                    await self._serve(stream)
            finally:
                stream.close()

    async def _greet(self, sock: socket.socket) -> PeerStream:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_BUFFER)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._known_contexts().server,
                ssl_handshake_timeout=self._handshake_within,
            )
        except BaseException:
            sock.close()
            raise
        return PeerStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def _known_contexts(self) -> _Contexts:
        if self._contexts is None:
            raise ConnectionError("this agent is alone in its cluster")
        return self._contexts

    # Talking to them

    def set_others(self, nodes: Iterable[NodePlace]) -> None:
        """Set the nodes of other agents; from now on, no others are accepted."""
        self._others = list(nodes)
        self._members = {node["fingerprint"] for node in self._others}

    def ranks_of(self, peer: str) -> frozenset[int]:
        """Return the ranks of the agent with a fingerprint."""
        theirs = (node["ranks"] for node in self._others if node["fingerprint"] == peer)
        return frozenset(itertools.chain.from_iterable(theirs))

    async def ask_all(self, message: Message) -> list[Message | None]:
        """Send all other agents a request; return the answers of those that are there.

        One that says nothing may be there: its machine may be busy, or behind a broken network. Its
        answer is ``None``.
        """
        if self._contexts is None:
            return []
        # One agent may serve several nodes; it is asked once.
        agents = {node["fingerprint"]: node for node in self._others}.values()
        answers = await asyncio.gather(
            *(self._ask(node, message) for node in agents), return_exceptions=True
        )
        return [
            None if isinstance(answer, BaseException) else answer
            for answer in answers
            if not isinstance(answer, BaseException) or _may_be_there(answer)
        ]

    async def reach(self, peers: Sequence[AgentAddress]) -> dict[int, str]:
        """Try to reach peers; return the errors, by node.

        Raises
        ------
        ConnectionError
            If this agent is alone, so that it cannot tell.
        """
        return await self.tell(peers, {"op": "hello"})

    async def tell(self, peers: Sequence[AgentAddress], message: Message) -> dict[int, str]:
        """Send peers a message; return the errors, by node.

        Raises
        ------
        ConnectionError
            If this agent is alone, so that it cannot tell.
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
        """Return whether the machines of all other agents answer, but none has an agent any more.

        A machine that does not answer may still have its agent, behind a broken network.
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

    async def _ask(self, peer: AgentAddress, message: Message) -> Message:
        async with self.connect(peer) as stream:
            # In TLS 1.3, a client is connected before the server has checked its certificate: only
            # an answer shows that it was accepted.
            await stream.send(message)
            answer, _ = await asyncio.wait_for(stream.receive(), REACH_WITHIN)
            return answer

    @contextlib.asynccontextmanager
    async def connect(self, peer: AgentAddress) -> AsyncIterator[PeerStream]:
        """Connect to a peer; raise ``OSError`` if it is not there."""
        try:
            async with asyncio.timeout(REACH_WITHIN):
                reader, writer = await asyncio.open_connection(
                    peer["addr"], peer["port"], ssl=self._known_contexts().client, limit=_BUFFER
                )
        except TimeoutError:
            raise TimeoutError(f"no answer within {REACH_WITHIN:.0f} s") from None
        stream = PeerStream(reader, writer)
        try:
            if stream.peer != peer["fingerprint"]:
                raise OSError("another agent answers there")
            yield stream
        finally:
            stream.close()


@dataclass(frozen=True)
class _Contexts:
    """The TLS settings of an agent, for connections to it and from it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def _may_be_there(error: BaseException) -> bool:
    """Return whether an agent may be there that could not be asked: nothing has said otherwise."""
    if not isinstance(error, OSError | ProtocolError):
        raise error
    return isinstance(error, TimeoutError) or getattr(error, "errno", None) in _NO_WAY


def _break_if_vanished(sock: socket.socket) -> None:
    """Have the system break a connection whose other machine is gone, whoever waits for which."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = VANISHED_AFTER // (1 + _PROBES)
    options = {
        "TCP_KEEPIDLE": every,
        "TCP_KEEPINTVL": every,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": VANISHED_AFTER * 1000,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has each
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _context(protocol: int, path: Path, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An agent is identified by its certificate, whatever its address.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    context.load_cert_chain(path)
    return context
