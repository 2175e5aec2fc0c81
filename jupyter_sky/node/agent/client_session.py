"""The clients of an agent: each sends requests, and follows the journal at its own pace."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Protocol, cast

import jupyter_sky
from jupyter_sky.node.agent.idle import IdleTimer
from jupyter_sky.node.agent.journal import Journal
from jupyter_sky.node.agent.request_cache import Answer
from jupyter_sky.node.blobs.bulk_sender import BulkSender
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.files import reader
from jupyter_sky.serialization.blobs import PIECE, file_name, map_privately
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError, encode
from jupyter_sky.transport.link import HIGH_WATER, Link
from jupyter_sky.transport.metrics.usage_history import Samples
from jupyter_sky.transport.protocol.agent_requests import CAUGHT_UP, FetchRequest, ReadRequest
from jupyter_sky.transport.protocol.messages import Hello, Welcome
from jupyter_sky.transport.tasks import BackgroundTasks, aside, shielded
from jupyter_sky.transport.together.ranks_done import Brief, JoinedEvents

SILENCE = 30.0  # seconds without a sign of life after which a client is taken to be gone

HEARD_WITHIN = 5.0
"""Seconds after its last sign of life in which a notebook is taken to be there.

A kernel that was killed without a word leaves a link that is closed much later: one that is only
busy is not worth a new one.
"""

HELD_FOR = 0.002  # seconds that events wait which nobody waits for: what follows goes with them

TAKEN_WITHIN = 0.05  # seconds in which it is said that a run was taken: most cells end before

_AT_ONCE = 64 * 1024  # bytes of events that are sent together

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

    A client that is slower than the events is served from the journal when it has room again: it
    misses nothing, and the agent's memory does not grow.

    Each message wakes the client, which on one machine competes with the agent for processors. So
    messages that are not urgent are held for a moment and sent together with those that follow: the
    acceptance of a run, and the end of most of its ranks, which become one message (`ranks_done`).
    The beginning of the client's own run is sent with the next event. Everything is sent in the
    order of the journal, and an answer comes after the events that preceded it.

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
    """

    def __init__(self, sock: socket.socket, host: SessionHost) -> None:
        self._host = host
        self.is_notebook = False
        self.token = self._version = ""
        self._next: int | None = None
        self._has_history = 0
        self._held: deque[tuple[int, Message]] = deque()  # answers, each behind an event
        self._asked: str | None = None  # the last run that the client requested
        self._timer: asyncio.TimerHandle | None = None
        self._piece = memoryview(b"")  # memory for pieces of blobs, allocated for the first one
        self._tasks = BackgroundTasks()
        self._link = Link(
            sock, self._receive, self._on_close, self._piece_buffer, SILENCE, on_drained=self.pump
        )
        self._bulk = BulkSender(self._link)
        self._fetches: dict[int, asyncio.Task[None]] = {}

    @property
    def silent_for(self) -> float:
        """Seconds since the client's last sign of life."""
        return self._link.silent_for

    def close(self) -> None:
        """Send what is held, and close the connection."""
        if self._timer:
            self.pump()
        self._link.close()

    # What the agent sends

    def pump(self, is_urgent: bool = True) -> None:
        """Send the events that the client does not have yet, as long as it accepts them.

        An error closes this client's connection alone: events come from a rank's link.

        Parameters
        ----------
        is_urgent
            Whether somebody may be waiting for the last of them; otherwise they are sent a moment
            later, or before whatever is sent next.
        """
        if not is_urgent and not self._link.unsent_bytes:
            return self._send_within(HELD_FOR) if self._has_news else None
        try:
            self._send_events()
        except Exception:
            logging.getLogger(__name__).exception("events could not be sent to a client")
            self._link.close()

    @property
    def _has_news(self) -> bool:
        """Whether there is more for it than that its run has begun."""
        journal = self._host.journal
        if self._next is None or self._next > journal.last:
            return False
        return self._next < journal.last or journal.brief(self._next) != Brief(self._asked or "")

    def _send_within(self, seconds: float) -> None:
        due = (loop := asyncio.get_running_loop()).time() + seconds
        if self._link.closed or (self._timer and self._timer.when() <= due):
            return
        if self._timer:
            self._timer.cancel()
        self._timer = loop.call_at(due, self.pump)

    def _send_events(self) -> None:
        """Send what is held, and all events, as far as the client accepts them."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        journal, link = self._host.journal, self._link
        parts, size = list[bytes](), 0
        while self._next is not None and self._next <= journal.last:
            together = self._together()
            if together and not together.has_ranks:
                break  # the beginning of its own run is sent with the next event
            while self._held and self._held[0][0] < self._next:
                parts.append(encode(self._held.popleft()[1]))
            if size >= _AT_ONCE:
                link.send_encoded(b"".join(parts))
                parts, size = [], 0
            if link.unsent_bytes >= HIGH_WATER:
                # Most answers do not wait for all, or who reads slowly would get none in time.
                break
            if together:
                self._next = together.last + 1
                frame = encode({**together.message(), **self._pop_taken()})
            else:
                frame, self._next = journal.read(self._next)
            parts.append(frame)
            size += len(frame)
        is_full = link.unsent_bytes >= HIGH_WATER
        late = deque(each for each in self._held if is_full and CAUGHT_UP in each[1])
        parts += [encode(each[1]) for each in self._held if each not in late]
        self._held = late
        if parts:
            link.send_encoded(parts[0] if len(parts) == 1 else b"".join(parts))

    def _together(self) -> JoinedEvents | None:
        """Return the next events that can be joined to one message, if any."""
        together = JoinedEvents(self._asked, cast(int, self._next), self._host.journal.brief)
        is_end = together.count and together.last == self._host.journal.last
        return together if together.has_ranks or is_end else None

    def _pop_taken(self) -> Message:
        """Return the next answer if it is due and merely confirms a request."""
        is_due = self._held and self._held[0][0] < cast(int, self._next)
        return self._held.popleft()[1] if is_due and self._held[0][1].keys() == {"re"} else {}

    def send_report(self, message: Message) -> None:
        """Send a message that is not kept in the journal, unless the client is already behind."""
        if self._next is not None and not self._link.unsent_bytes:
            self.pump()
            self._link.send(message)

    def send_history(self, samples: Samples) -> None:
        """Send the samples that the client does not have: all of them to a new client."""
        if self._next is None or self._link.unsent_bytes:
            return
        if (part := samples.after(self._has_history)) is not None:
            self._has_history = samples.last
            self.pump()
            self._link.send({"report": [], "history": part})

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
                self._follow(message["since"])
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
                    self._asked = message["run"]
                answer = self._host.answer(self.token, message)
                # The kernel expects this already, unless it waits to send more.
                waits = any(message.get(field) for field in ("serves", "talks", "first"))
                is_taken, within = op == "run" and answer == {}, HELD_FOR if waits else TAKEN_WITHIN
                self._send_answer(message["id"], answer, within if is_taken else None)

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
            self._follow(hello["since"])

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

    def _follow(self, since: int) -> None:
        self._next = max(0, since) + 1
        self.pump()

    def _send_answer(self, number: int, answer: Answer, within: float | None = None) -> None:
        if isinstance(answer, dict):
            self._held.append((self._host.journal.last, {"re": number, **answer}))
            self.pump() if within is None else self._send_within(within)
        else:
            self._tasks.spawn(self._send_answer_later(number, answer))

    async def _send_answer_later(self, number: int, answer: asyncio.Task[Message]) -> None:
        self._send_answer(number, await shielded(answer))

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
        if self._timer:
            self._timer.cancel()
        self._held.clear()
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
            session.pump(is_urgent)

    def send_report(self, message: Message) -> None:
        """Send each client a message that is not kept in the journal."""
        for session in list(self._sessions):  # as in `pump`
            session.send_report(message)

    def send_history(self, samples: Samples) -> None:
        """Send each client the samples that it does not have."""
        for session in list(self._sessions):
            session.send_history(samples)
