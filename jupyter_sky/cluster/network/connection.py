"""A connection to the agent of a machine: requests and answers, events, blobs.

The links under it come and go. What was asked is asked again on the next link, where the agent
knows it by its number and does nothing twice; events and blobs go on where they broke off.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jupyter_sky
from jupyter_sky.cluster.network.upload import Upload
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.base import AgentGone, Machine, MachineGone
from jupyter_sky.serialization.pickling import load_with_memo
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.events import Event, Forgotten, decode_event
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.messages import Packed

ANSWER_WITHIN = 30.0
"""Seconds for an answer to a request that does not wait for a rank; broken links do not count."""

SILENCE = 5.0
"""Seconds without a sign of life after which a link is taken to be broken."""

_PAUSES = (0.0, 0.5, 1.0, 2.0)
"""Seconds before each attempt to connect again; the last is for all that follow."""


@dataclass
class _Fetching:
    """A blob that comes, and how much of it is there."""

    whole: memoryview
    received: int = 0


class Connection:
    """A connection, owned by the background loop.

    Parameters
    ----------
    machine
        The machine to connect to.
    on_event
        Called for each event of the agent's journal, in order.
    on_lost
        Called once when the agent is gone for good.
    visits
        Whether it is no notebook's: it keeps no node up, and what it sees stays new to notebooks.

    Attributes
    ----------
    last
        Number of the last event that came.
    on_report
        Called while something runs with what ranks use, as ``node.metrics`` measures it.
    on_link
        Called with the connection when its link broke, and when it has a new one.
    broken_since
        When the link broke, as the loop counts; ``None`` while there is one.
    trouble
        Why there is no link, in words.
    upload
        What sends blobs.
    """

    def __init__(
        self,
        machine: Machine,
        on_event: Callable[[Connection, Event], None],
        on_lost: Callable[[Connection], None],
        visits: bool = False,
    ) -> None:
        self.machine = machine
        self.last = 0
        self.on_report: Callable[[list[dict[str, Any]]], None] = lambda report: None
        self.on_link: Callable[[Connection], None] = lambda connection: None
        self.broken_since: float | None = None
        self.trouble = ""
        self.on_event = on_event
        self.on_lost = on_lost
        self._visits = visits
        self._link: Link | None = None
        self._hello: asyncio.Future[Message] | None = None
        self._up = asyncio.Event()
        self._breaks = 0
        self._over = False
        self._mending: asyncio.Task[None] | None = None
        self._token = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[Message, asyncio.Future[Message]]] = {}
        self._fetching: dict[int, _Fetching] = {}
        self._known: set[str] = set()
        self._begun: set[str] = set()
        self._sent_before = 0
        self.upload = Upload(self)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks of this machine."""
        return frozenset(rank for node in self.machine.nodes for rank in node.ranks)

    @property
    def name(self) -> str:
        """What a person calls the machine."""
        return self.machine.nodes[0].host

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or its agent is gone."""
        return self._over

    @property
    def is_up(self) -> bool:
        """Whether there is a link at this moment."""
        return self._up.is_set()

    @property
    def link(self) -> Link | None:
        """The present link, or the last one."""
        return self._link

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far."""
        return self._sent_before + (self._link.sent_bytes if self._link else 0)

    # The link

    async def open(self, since: int | None = None) -> Message:
        """Connect and return the agent's welcome.

        Parameters
        ----------
        since
            Number of the last event that is known. With ``None`` events come when `follow` says
            from where on.

        Raises
        ------
        AgentGone
            When there is no agent any more.
        OSError
            When it cannot be reached.
        """
        welcome = await self._greet(since)
        if self._over:
            # Closed meanwhile: a node must not take it for a notebook that uses it.
            if self._link:
                self._link.close()
            raise ClusterLost("the connection was closed")
        self._up.set()
        if self._link is None or self._link.closed:
            self._closed()
        return welcome

    def follow(self, since: int) -> None:
        """Have events come, from the one after number ``since`` on."""
        self.last = since
        if self._link:
            self._link.send({"op": "follow", "since": since})

    def close(self) -> None:
        """Let go of the agent; it goes on."""
        self._over = True
        self._up.clear()
        if self._mending and self._mending is not asyncio.current_task():
            self._mending.cancel()
        if self._link:
            self._link.close()
        trouble = ClusterLost("the node's agent is gone")
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(trouble)

    def give_up(self, trouble: str) -> None:
        """Take it that the agent is gone for good."""
        if not self._over:
            self.trouble = trouble
            self.close()
            self.on_lost(self)

    async def _greet(self, since: int | None) -> Message:
        sock = await self.machine.open()
        if self._over:
            sock.close()
            raise ClusterLost("the connection was closed")
        if self._link:
            self._sent_before += self._link.sent_bytes
        self._hello = asyncio.get_running_loop().create_future()
        link = self._link = Link(sock, self._receive, self._closed, self._place, SILENCE)
        hello = {"op": "hello", "since": since, "token": self._token, "blobs": [*self._known]}
        link.send({**hello, "visits": self._visits, "version": jupyter_sky.__version__})
        try:
            welcome = await asyncio.wait_for(self._hello, ANSWER_WITHIN)
        except TimeoutError:
            link.close()
            raise OSError("its agent did not answer") from None
        except BaseException:
            link.close()
            raise
        self.forget(welcome["missing"])
        return welcome

    def _closed(self) -> None:
        if self._hello and not self._hello.done():
            self._hello.set_exception(OSError("the link broke at once"))
        if self._up.is_set() and not self._over:
            self._up.clear()
            self._breaks += 1
            loop = asyncio.get_running_loop()
            self.broken_since = loop.time()
            self._mending = loop.create_task(self._mend())
            self.on_link(self)

    async def _mend(self) -> None:
        """Connect again, however long it takes, and go on where the link broke."""
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            await asyncio.sleep(pause)
            try:
                welcome = await self._greet(self.last)
            except MachineGone as gone:
                self.give_up(f"ended: {gone}")
                return
            except AgentGone:
                self.give_up("ended")
                return
            except OSError as error:
                self.trouble = str(error)
                continue
            if welcome["ending"]:
                self.give_up("ended")
                return
            link = self._link
            if link is None or link.closed:
                continue
            self.trouble, self.broken_since = "", None
            self._up.set()
            for number, (message, _) in self._asked.items():
                if number in self._fetching:
                    message["offset"] = self._fetching[number].received
                link.send(message)
            self.on_link(self)
            return

    # Requests

    async def request(
        self, op: str, *, within: float | None = ANSWER_WITHIN, **fields: Any
    ) -> Message:
        """Ask the agent for something and return its answer.

        Raises
        ------
        SkyError
            With the agent's words, when it cannot.
        ClusterLost
            When the agent is gone, or does not answer ``within`` so many seconds.
        """
        return await self._ask(next(self._numbers), {"op": op, **fields}, within)

    async def _ask(self, number: int, message: Message, within: float | None) -> Message:
        if self._over or self._link is None:
            raise ClusterLost("the node's agent is gone")
        answer = asyncio.get_running_loop().create_future()
        # The agent need not remember answers that have arrived.
        message = {**message, "id": number, "settled": min(self._asked, default=number)}
        self._asked[number] = (message, answer)
        if self._up.is_set():
            self._link.send(message)
        try:
            answered = await self._await(answer, within)
        finally:
            self._asked.pop(number, None)
        if "error" in answered:
            raise SkyError(answered["error"])
        return answered

    async def _await(self, answer: asyncio.Future[Message], within: float | None) -> Message:
        while True:
            breaks = self._breaks
            done, _ = await asyncio.wait({answer}, timeout=within)
            if done:
                return answer.result()
            if self._up.is_set() and self._breaks == breaks:
                raise ClusterLost(f"the node's agent did not answer within {within:.0f} s")

    # Blobs

    def has(self, key: str) -> bool:
        """Return whether the node has a blob, as far as is known."""
        return key in self._known

    def learn(self, key: str) -> None:
        """Note that the node has got a blob from another."""
        self._known.add(key)

    async def put(
        self, blobs: Mapping[str, memoryview], progress: Callable[[int], None] = lambda count: None
    ) -> None:
        """Send the blobs that the node does not have yet.

        Parameters
        ----------
        blobs
            The blobs by their digests.
        progress
            Told for each piece how many bytes have left.
        """
        for key, data in blobs.items():
            if key not in self._known:
                await self._put(key, data, progress)
                self._known.add(key)

    async def _put(self, key: str, data: memoryview, progress: Callable[[int], None]) -> None:
        offset, breaks = 0, self._breaks
        if key in self._begun:
            breaks -= 1
        self._begun.add(key)
        while offset < data.nbytes:
            if breaks != self._breaks or not self._up.is_set():
                # The agent says how much has arrived, as soon as there is a link to say it on.
                breaks = self._breaks
                arrived = await self.request("arrived", blob=key)
                offset = arrived["size"]
            else:
                offset = await self.upload.send(key, data, offset, progress)

    def forget(self, keys: list[str]) -> None:
        """Note that the node does not have these blobs."""
        self._known.difference_update(keys)

    async def fetch(self, key: str, size: int) -> memoryview:
        """Return a blob of the node, as memory that can be written to."""
        number = next(self._numbers)
        whole = memoryview(bytearray(size))
        self._fetching[number] = _Fetching(whole)
        try:
            message = {"op": "fetch", "blob": key, "size": size, "offset": 0}
            await self._ask(number, message, None)
        finally:
            del self._fetching[number]
        return whole

    def load(
        self, packed: Packed, learn: Callable[[dict[int, Any]], None] = lambda objects: None
    ) -> Any:
        """Fetch the parts of a packed value and unpickle it; for the person's thread.

        Parameters
        ----------
        packed
            What a rank packed.
        learn
            Told of the objects in it that have tokens.
        """

        def part(data: Any) -> Any:
            if isinstance(data, dict):
                return event_loop.wait(self.fetch(data["blob"], data["size"]))
            return bytearray(data)

        buffers = [part(buffer) for buffer in packed["buffers"]]
        value, memo = load_with_memo(part(packed["stream"]), buffers)
        learn({token: memo[place] for place, token in packed.get("tokens", {}).items()})
        return value

    # What comes

    def _place(self, message: Message, size: int) -> memoryview:
        fetching = self._fetching.get(message.get("piece", 0))
        if fetching is None:
            return memoryview(bytearray(size))
        return fetching.whole[message["offset"] : message["offset"] + size]

    def _receive(self, message: Message, payload: memoryview) -> None:
        if "welcome" in message:
            if self._hello and not self._hello.done():
                self._hello.set_result(message)
        elif "re" in message:
            _, answer = self._asked.get(message["re"], (None, None))
            if answer and not answer.done():
                answer.set_result(message)
        elif "piece" in message:
            if fetching := self._fetching.get(message["piece"]):
                fetching.received = message["offset"] + payload.nbytes
        elif "report" in message:
            self.on_report(message["report"])
        elif "event" in message and message["n"] > self.last:
            self.last = message["n"]
            event = decode_event(message)
            if isinstance(event, Forgotten):
                self.forget(event.digests)
            self.on_event(self, event)
