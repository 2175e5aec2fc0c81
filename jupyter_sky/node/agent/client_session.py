"""The clients of an agent: each sends requests, and follows the journal at its own pace."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

import jupyter_sky
from jupyter_sky.node.agent.events.event_feed import EventFeed
from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.node.agent.idle import IdleTimer
from jupyter_sky.node.agent.request_cache import Answer
from jupyter_sky.node.blobs.bulk_sender import BulkSender
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.files import reader
from jupyter_sky.serialization.blobs import PIECE, file_name, map_privately
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.metrics.usage_history import Samples
from jupyter_sky.transport.protocol.agent_requests import FetchRequest, ReadRequest
from jupyter_sky.transport.protocol.messages import Hello, Welcome
from jupyter_sky.transport.tasks import BackgroundTasks, aside, shielded

SILENCE = 30.0  # seconds without a sign of life after which a client is taken to be gone

HEARD_WITHIN = 5.0
"""Seconds after its last sign of life in which a notebook is taken to be there.

A kernel that was killed without a word leaves a link that is closed much later: one that is only
busy is not worth a new one.
"""

ANY_VERSION = frozenset({"end", "interrupt", "log"})
"""What a client of another version may ask for: to read, to stop, and to end."""

_UNSAID_VERSION = "0.1.0"  # for a client that does not send its version


class SessionHost(Protocol):
    """What a session needs from its agent."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""

    @property
    def journal(self) -> Journal:
        """The events of the node."""

    @property
    def store(self) -> BlobStore:
        """The blobs of the node."""

    @property
    def idle(self) -> IdleTimer:
        """Its idle timer."""

    def welcome(self, session: ClientSession, missing: list[str]) -> Welcome:
        """Return what a newly connected client should know."""

    def answer(self, token: str, message: Message) -> Answer:
        """Carry out a request of the client with that token, unless it was carried out before."""

    def on_session_changed(self) -> None:
        """Called when it is known whether the client is a notebook."""

    def on_seen(self, number: int) -> None:
        """Called when a notebook acknowledges the events up to a number."""

    def on_session_closed(self, session: ClientSession) -> None:
        """Called once when a client is gone."""


class ClientSession:
    """One connection of a client to the agent.

    Parameters
    ----------
    sock
        The connection.
    host
        The agent.

    Attributes
    ----------
    token
        Identifies the client, also over its next connection.
    is_notebook
        Whether the client is a notebook. A visitor's connection does not keep the node from ending,
        and events that a visitor sees still count as unseen by notebooks.
    feed
        What it is sent: events and answers.
    """

    def __init__(self, sock: socket.socket, host: SessionHost) -> None:
        self._host = host
        self.is_notebook = False
        self.token = self._version = ""
        self._piece = memoryview(b"")  # memory for pieces of blobs, allocated for the first one
        self._tasks = BackgroundTasks()
        self._link = Link(
            sock,
            self._receive,
            self._on_close,
            self._piece_buffer,
            SILENCE,
            on_drained=lambda: self.feed.pump(),
        )
        self.feed = EventFeed(self._link, host.journal)
        self._bulk = BulkSender(self._link)
        self._fetches: dict[int, asyncio.Task[None]] = {}

    @property
    def silent_for(self) -> float:
        """Seconds since the client's last sign of life."""
        return self._link.silent_for

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self.feed.finish()
        self._link.close()

    # What the client sends

    def _piece_buffer(self, message: Message, size: int) -> memoryview:
        if message.get("op") not in ("piece", "pieces"):
            raise ProtocolError("only pieces of blobs have a payload")
        if size > PIECE:
            raise ProtocolError(f"a piece of {size} bytes is too large")
        if not self._piece:
            self._piece = memoryview(bytearray(PIECE))
        return self._piece[:size]

    def _receive(self, message: Message, payload: memoryview) -> None:
        match message["op"]:
            case "piece":
                piece = expand(message, payload, PIECE)
                self._host.store.add(message["blob"], message["offset"], piece, message["size"])
            case "pieces":
                whole = expand(message, payload, PIECE)
                for key, size in message["blobs"]:
                    self._host.store.add(key, 0, whole[:size], size)
                    whole = whole[size:]
            case "hello":
                self._greet(cast(Hello, message))
            case "follow":
                self.feed.follow(message["since"])
            case "seen":
                self._note_seen(message["n"])
            case "fetch":
                fetching = self._fetch(cast(FetchRequest, message))
                self._fetches[message["id"]] = self._tasks.spawn(fetching)
            case "got":
                self._bulk.on_arrived(message["size"])
                self._host.idle.on_work()
            case "unwanted":
                if fetch := self._fetches.get(message["id"]):
                    fetch.cancel()
            case op if op not in ANY_VERSION and self._version != jupyter_sky.__version__:
                self._send_answer(message["id"], {"error": self._refusal()})
            case "read":
                self._tasks.spawn(self._read(cast(ReadRequest, message), message["id"]))
            case op:
                if "seen" in message:
                    self._note_seen(message["seen"])
                if op == "run":
                    self.feed.asked = message["run"]
                answer = self._host.answer(self.token, message)
                if op == "run" and answer == {}:
                    # The kernel expects this already, unless it waits to send more.
                    waits = any(message.get(field) for field in ("serves", "talks", "first"))
                    self.feed.confirm(message["id"], waits)
                else:
                    self._send_answer(message["id"], answer)

    def _greet(self, hello: Hello) -> None:
        self.token = hello["token"]
        self._version = hello.get("version", _UNSAID_VERSION)
        self.is_notebook = not hello.get("visits", False)
        self._host.on_session_changed()
        missing = [key for key in hello["blobs"] if key not in self._host.store]
        welcome = self._host.welcome(self, missing)
        self._link.send(welcome)
        if hello["since"] is not None and not welcome["ending"]:
            self._note_seen(hello["since"])
            self.feed.follow(hello["since"])

    def _refusal(self) -> str:
        name, ours = self._host.cluster, jupyter_sky.__version__
        return (
            f"cluster {name} was started by jupyter_sky {ours}, which {self._version} cannot use: "
            f"end it with `%sky down {name}` and start it again, or install jupyter_sky {ours} "
            "where the notebook runs."
        )

    def _note_seen(self, number: int) -> None:
        if self.is_notebook:
            self._host.on_seen(number)

    def _send_answer(self, number: int, answer: Answer) -> None:
        if isinstance(answer, dict):
            self.feed.answer(number, answer)
        else:
            self._tasks.spawn(self._send_answer_later(number, answer))

    async def _send_answer_later(self, number: int, answer: asyncio.Task[Message]) -> None:
        self.feed.answer(number, await shielded(answer))

    async def _fetch(self, request: FetchRequest) -> None:
        number = request["id"]
        try:
            path = self._host.store.folder / file_name(request["blob"])
            mapped = map_privately(path, request["size"])
        except (OSError, ValueError):
            self._link.send({"re": number, "error": "this value is no longer kept"})
        else:
            await self._bulk.send_blob(number, memoryview(mapped), request["offset"])
            self._link.send({"re": number})
        finally:
            self._fetches.pop(number, None)

    async def _read(self, request: ReadRequest, number: int) -> None:
        parts = await aside(reader.read, request["parts"])
        await self._bulk.send_parts(number, parts)

    def _on_close(self) -> None:
        self._piece = memoryview(b"")
        self._bulk.close()
        self.feed.close()
        self._host.on_session_closed(self)


class ClientSessions:
    """All clients that are connected to an agent."""

    def __init__(self) -> None:
        self._sessions: set[ClientSession] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, token: object) -> bool:
        return any(each.token == token for each in self._sessions)

    def add(self, session: ClientSession) -> None:
        """Add a client that has connected."""
        self._sessions.add(session)

    def discard(self, session: ClientSession) -> None:
        """Remove a client that is gone."""
        self._sessions.discard(session)

    def has_notebook(self, least: int = 1) -> bool:
        """Return whether so many notebooks are connected; a silent one may have ended."""
        return sum(each.is_notebook for each in self._sessions) >= least

    def hears_notebook(
        self, within: float = HEARD_WITHIN, but: ClientSession | None = None
    ) -> bool:
        """Return whether a notebook, other than that of one session, gave a sign of life lately."""
        others = self._sessions - {but}
        return any(each.is_notebook and each.silent_for <= within for each in others)

    def close(self) -> None:
        """Close the connection to each client."""
        for session in list(self._sessions):
            session.close()

    def pump(self, is_urgent: bool = True) -> None:
        """Send each client the events that it does not have yet."""
        for session in list(self._sessions):  # one that is closed meanwhile removes itself
            session.feed.pump(is_urgent)

    def send_report(self, message: Message) -> None:
        """Send each client a message that is not kept in the journal."""
        for session in list(self._sessions):  # as in `pump`
            session.feed.send_report(message)

    def send_history(self, samples: Samples) -> None:
        """Send each client the samples that it does not have."""
        for session in list(self._sessions):
            session.feed.send_history(samples)
