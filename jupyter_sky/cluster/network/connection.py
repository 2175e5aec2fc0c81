"""The connection to the agent of a machine: requests and answers, events, blobs.

The links under it come and go. A request without an answer is sent again on the next one, where the
agent knows it by its number and does nothing twice; events and blobs go on where they broke off.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import jupyter_sky
from jupyter_sky.cluster.network import incoming
from jupyter_sky.cluster.network.blobs.download import FETCH_WITHIN, Downloads
from jupyter_sky.cluster.network.connection_context import ConnectionContext
from jupyter_sky.cluster.network.incoming import Report
from jupyter_sky.cluster.network.requests import pending
from jupyter_sky.cluster.network.requests.events import Events, Taking
from jupyter_sky.cluster.network.requests.seen import Seen
from jupyter_sky.cluster.network.upload import Uploads
from jupyter_sky.errors import ClusterLost
from jupyter_sky.providers.base import AgentGone, Machine, NotLetIn, Suspended
from jupyter_sky.transport.frames import Message, SharedFields
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.protocol.events import Event, Forgotten, RankDone
from jupyter_sky.transport.protocol.messages import Hello, Welcome

SILENCE = 5.0
"""Seconds without a sign of life after which a link is taken to be broken."""

_PAUSES = (0.0, 0.5, 1.0, 2.0)
"""Seconds before each attempt to connect again; the last one applies to all further attempts."""


class ConnectionListener:
    """What a connection calls in the background loop when something happens; ignores it all."""

    def on_event(self, connection: Connection, event: Event) -> None:
        """Handle an event of the agent's journal; each comes once, in order."""

    def on_ranks_done(self, connection: Connection, events: Sequence[RankDone]) -> None:
        """Handle that ranks have finished a run without error; these are journal events too."""

    def on_report(self, connection: Connection, report: Report) -> None:
        """Handle the resource usage of ranks, as `node.agent.usage` measures it."""

    def on_foreign_ranks(self, connection: Connection, ranks: frozenset[int]) -> None:
        """Handle that the node spoke for ranks that are not its own; what it said was dropped."""

    def on_malformed(self, connection: Connection, what: str) -> None:
        """Handle that the node sent something malformed; ``what`` says in words what is wrong."""

    def on_link_changed(self, connection: Connection) -> None:
        """Handle that the link broke, or that there is a new one; ``is_up`` says which."""

    def on_agent_lost(self, connection: Connection) -> ClusterLost:
        """Handle that the agent is gone for good, once; return what its requests fail with."""
        return connection.loss


class Connection:
    """A connection to one agent, owned by the background loop.

    Parameters
    ----------
    machine
        The machine to connect to.
    listener
        Told of events, reports, broken links and the end of the agent.
    visits
        Whether this process is not a notebook: a visitor does not keep the node up, and the events
        that it receives count as unseen, so that the next notebook shows them.
    context
        What it shares with the other connections of its cluster.

    Attributes
    ----------
    ranks
        The ranks of the machine.
    broken_since
        When the link broke, by the loop's clock; ``None`` while there is one.
    trouble, is_shut_out, stands_still, is_stopped, loss
        Why there is no link; if the user has to act; if nothing runs; if it is off; later errors.
    events, uploads
        Takes the agent's events; sends blobs, and knows which ones the node has.
    """

    def __init__(
        self,
        machine: Machine,
        listener: ConnectionListener,
        visits: bool = False,
        context: ConnectionContext | None = None,
    ) -> None:
        self._context = context or ConnectionContext()
        self._seen = Seen(self._current_link)
        taking = Taking(
            self._take,
            lambda events: listener.on_ranks_done(self, events),
            lambda ranks: listener.on_foreign_ranks(self, ranks),
        )
        self.events = Events(taking, self._context.ends, None if visits else self._seen)
        self.machine = machine
        self.broken_since: float | None = None
        self.trouble, self.is_shut_out, self.stands_still = "", False, False
        self.loss = ClusterLost("the node's agent is gone")
        self._listener, self._visits = listener, visits
        self._link: Link | None = None
        self._welcome: asyncio.Future[Welcome] | None = None
        self._up = self._over = self._follows = self.is_stopped = False
        self._reconnecting: asyncio.Task[None] | None = None
        self._token = uuid.uuid4().hex
        self._requests = pending.PendingRequests(
            lambda: self._up, self._no_connection, lambda: self.name
        )
        self._downloads = Downloads(self._current_link)
        self.uploads = Uploads(
            self.request, self._current_link, machine.blobs_here, self._context.traffic
        )

    @property
    def machine(self) -> Machine:
        """The machine that it leads to, with its nodes."""
        return self._machine

    @machine.setter
    def machine(self, machine: Machine) -> None:
        self._machine = machine
        # Kept, because it is needed for each event.
        self.ranks = frozenset(rank for node in machine.nodes for rank in node.ranks)
        self.events.ranks = self.ranks

    @property
    def name(self) -> str:
        """What the user calls the machine."""
        return self.machine.nodes[0].host

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or its agent is gone."""
        return self._over

    @property
    def is_repeating(self) -> bool:
        """Whether the effect of the event that is being taken was known when it connected."""
        return not self._over and self.events.last <= self.events.known

    @property
    def is_up(self) -> bool:
        """Whether there is a link at this moment."""
        return self._up

    def _current_link(self) -> Link | None:
        return self._link if self._up else None

    # The link

    async def open(self, since: int | None = None) -> Welcome:
        """Connect and return the agent's welcome.

        Parameters
        ----------
        since
            Number of the last event that is known. With ``None``, no events come before `follow`.

        Raises
        ------
        AgentGone
            When the agent is gone.
        OSError
            When it cannot be reached.
        """
        self.events.last, self._follows = since or 0, since is not None
        welcome = await self._greet()
        if self._over:
            # Closed meanwhile: an open link would look to the node like a notebook that uses it.
            if self._link:
                self._link.close()
            raise ClusterLost("the connection was closed")
        self._up = True
        if self._link is None or self._link.closed:
            self._link_closed()
        return welcome

    def follow(self, since: int, known: int) -> None:
        """Ask for the events after number ``since``; the effect of those to ``known`` is known."""
        self.events.last, self.events.known, self._follows = since, known, True
        if self._link:
            self._link.send({"op": "follow", "since": since})

    def close(self) -> None:
        """Close the connection; the agent goes on. Requests without an answer fail."""
        self._seen.tell()
        self._over, self._up = True, False
        if self._reconnecting and self._reconnecting is not asyncio.current_task():
            self._reconnecting.cancel()
        if self._link:
            self._link.close()
        self._requests.fail(self.loss)

    def declare_lost(self, trouble: str, is_stopped: bool = False) -> None:
        """Close the connection because the agent is gone for good, and tell the listener why."""
        if not self._over:
            self.trouble, self._over, self.is_stopped = trouble, True, is_stopped
            self.loss = self._listener.on_agent_lost(self)
            self.close()

    async def _greet(self) -> Welcome:
        sock = await self.machine.open()
        if self._over:
            sock.close()
            raise ClusterLost("the connection was closed")
        self._welcome = asyncio.get_running_loop().create_future()
        link = self._link = Link(
            *(sock, self._receive, self._link_closed, self._downloads.destination, SILENCE),
            heartbeat=self._seen.heartbeat,
            readiness=self._context.readiness,
            traffic=self._context.traffic,
        )
        hello: Hello = {
            "op": "hello",
            "since": self.events.last if self._follows else None,
            "token": self._token,
            "blobs": self.uploads.known,
            "visits": self._visits,
            "version": jupyter_sky.__version__,
        }
        link.send(hello)
        try:
            return await asyncio.wait_for(self._welcome, pending.ANSWER_WITHIN)
        except TimeoutError:
            link.close()
            raise OSError("its agent did not answer") from None
        except BaseException:
            link.close()
            raise

    def _link_closed(self) -> None:
        if self._welcome and not self._welcome.done():
            is_silent = self._link is not None and self._link.silent_for > SILENCE
            why = "its agent does not answer" if is_silent else "the link broke at once"
            self._welcome.set_exception(OSError(why))
        if self._up and not self._over:
            self._up = False
            loop = asyncio.get_running_loop()
            self.broken_since = loop.time()
            self._requests.on_link_changed()
            fault = self._link.fault if self._link else ""
            # Not at once after a malformed message: the node may send the same one each time.
            self._reconnecting = loop.create_task(self._reconnect(_PAUSES[bool(fault) :]))
            if fault:
                self._listener.on_malformed(self, fault)
            self._listener.on_link_changed(self)

    async def _reconnect(self, pauses: Sequence[float]) -> None:
        """Connect again, however long it takes."""
        heard = self._link.heard if self._link else float("inf")
        for pause in itertools.chain(pauses, itertools.repeat(pauses[-1])):
            await asyncio.sleep(pause)
            try:
                await self._greet()
                return
            except AgentGone as gone:
                self.declare_lost(*pending.end_of_agent(gone, heard))
                return
            except Exception as error:  # if the attempts ended, runs would wait forever
                if self._over:
                    return
                self.trouble, self.is_shut_out = str(error), isinstance(error, NotLetIn)
                self.stands_still = isinstance(error, Suspended)

    def _resume(self, link: Link) -> None:
        """Go on over a new link, and repeat the requests without an answer."""
        self.trouble, self.is_shut_out, self.stands_still = "", False, False
        self.broken_since, self._up = None, True
        for message in self._requests.on_link_changed():
            link.send(self._downloads.resume(message))
        self._listener.on_link_changed(self)

    # Requests

    async def request(
        self,
        op: str,
        *,
        within: float | None = pending.ANSWER_WITHIN,
        link_within: float | None = pending.LINK_WITHIN,
        **fields: Any,
    ) -> Message:
        """Send a request and return the agent's answer.

        Parameters
        ----------
        op
            What is asked for.
        within
            Seconds for the answer, while there is a link; ``None`` for no limit.
        link_within
            Seconds without a link, in all, after which it is given up, also those before it;
            ``None`` for no limit, if the user can see and stop what waits for it.
        **fields
            The other fields of the request.

        Raises
        ------
        SkyError
            When the agent refuses or fails, with its sentence.
        NoConnection
            When there is no link for too long.
        ClusterLost
            When the agent is gone, or does not answer in time.
        """
        if link_within and self.broken_since is not None:
            link_within = max(0.0, link_within - self._without_link)
        number = self._requests.new_number()
        return await self._ask(number, {"op": op, **fields}, within, link_within)

    async def _ask(
        self, number: int, message: Message, within: float | None, link_within: float | None
    ) -> Message:
        if self._over or self._link is None:
            raise self.loss.anew()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        encoded = self._requests.add(number, message, answer, within, link_within)
        if self._up:
            self._link.send_encoded(encoded)
        return await self._requests.wait_for(number, answer)

    def post(self, shared: SharedFields, own: Message, answer: pending.Answered) -> None:
        """Send one node its part of a request to many, however long there is no link."""
        if self._over or self._link is None:
            answer.set_exception(self.loss)
            return
        # Its event that the run has begun is news to other notebooks only.
        self.events.posted = shared.fields.get("run")
        number = self._requests.new_number()
        own = {**own, **self._seen.news()}
        encoded = self._requests.add(number, own, answer, pending.ANSWER_WITHIN, None, shared)
        if self._up:
            self._link.send_encoded(encoded)

    @property
    def _without_link(self) -> float:
        now = asyncio.get_running_loop().time()
        return now - (now if self.broken_since is None else self.broken_since)

    def _no_connection(self) -> str:
        return pending.no_link(self.name, self._without_link, self.trouble)

    async def fetch(self, key: str, size: int) -> memoryview:
        """Return a blob as memory that can be written to, however long there is no link."""
        if mapped := self.uploads.shared.read(key, size):
            return mapped
        number = self._requests.new_number()
        try:
            wanted = self._downloads.begin(number, key, size)
            await self._ask(number, wanted, FETCH_WITHIN, None)
            return self._downloads.end(number)
        finally:
            self._downloads.give_up(number)

    # Received messages

    def _receive(self, message: Message, payload: memoryview) -> None:
        self._downloads.acknowledge(message)
        if "event" in message:
            self.events.receive(message)
        if "re" in message:
            has_payload = payload or "payload" in message
            self._requests.on_answer({**message, "payload": payload} if has_payload else message)
        elif "welcome" in message:
            self._take_welcome(incoming.welcome(message))
        elif "piece" in message:
            if self._downloads.on_piece(message, payload):
                self._requests.on_answer({"re": message["piece"]})
            self._requests.renew(self._downloads.numbers)
        elif "report" in message:
            self._receive_report(incoming.report(message))

    def _take_welcome(self, welcome: Welcome) -> None:
        if self._link is None or self._welcome is None or self._welcome.done():
            return
        self.uploads.note_missing(welcome["missing"])
        self._welcome.set_result(welcome)
        # Now, as what follows may end the run that is to be told of the link.
        if self.broken_since is not None:
            self.declare_lost("ended") if welcome["ending"] else self._resume(self._link)

    def _take(self, event: Event) -> None:
        if isinstance(event, Forgotten):
            self.uploads.note_missing(event.digests)
        self._listener.on_event(self, event)

    def _receive_report(self, report: Report) -> None:
        if foreign := report.speaks_for.difference(self.ranks):
            self._listener.on_foreign_ranks(self, foreign)
        self._listener.on_report(self, report.of(self.ranks))
