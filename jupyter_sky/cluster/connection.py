"""A connection to the agent of a machine: requests and answers, events, blobs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.machine import Machine
from jupyter_sky.transport import background
from jupyter_sky.transport.blobs import pieces
from jupyter_sky.transport.events import Event, Forgotten, decode_event
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.pickling import load_with_memo

ANSWER_WITHIN = 30.0
"""Seconds for an answer to a request that does not wait for a rank."""


class Connection:
    """One connection, owned by the background loop.

    Parameters
    ----------
    machine
        The machine to connect to.
    on_event
        Called for each event of the agent's journal, in order.
    on_lost
        Called once when the agent cannot be reached any more.

    Attributes
    ----------
    on_welcome
        Called with the agent's welcome, before any event that comes behind it.
    on_report
        Called while something runs with what ranks use, as ``node.metrics`` measures it.
    """

    def __init__(
        self,
        machine: Machine,
        on_event: Callable[[Connection, Event], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.machine = machine
        self.last = 0
        self.on_welcome: Callable[[Connection, Message], None] = lambda connection, welcome: None
        self.on_report: Callable[[list[dict[str, Any]]], None] = lambda report: None
        self._on_event = on_event
        self._on_lost = on_lost
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._fetching: dict[int, memoryview] = {}
        self._known: set[str] = set()

    @property
    def ranks(self) -> list[int]:
        """The ranks of this machine."""
        return [rank for node in self.machine.nodes for rank in node.ranks]

    @property
    def sent_bytes(self) -> int:
        """Bytes sent on this connection so far."""
        return self._link.sent_bytes if self._link else 0

    async def open(self, since: int | None = None) -> Message:
        """Connect and return the agent's welcome.

        Parameters
        ----------
        since
            Number of the last event that is known; ``None`` leaves out what happened so far.
        """
        sock = await self.machine.open()
        self._link = Link(sock, self._receive, self._closed, self._place)
        return await self.request("hello", since=since)

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
        link = self._link
        if link is None or link.closed:
            raise ClusterLost("the node's agent is gone")
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        link.send({"op": op, "id": number, **fields})
        try:
            message = await asyncio.wait_for(answer, within)
        except TimeoutError:
            raise ClusterLost(f"the node's agent did not answer within {within:.0f} s") from None
        finally:
            self._answers.pop(number, None)
        if "error" in message:
            raise SkyError(message["error"])
        return message

    def missing(self, blobs: Mapping[str, memoryview]) -> int:
        """Return how many bytes of blobs the node does not have yet."""
        return sum(data.nbytes for key, data in blobs.items() if key not in self._known)

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
            if key in self._known or self._link is None:
                continue
            for offset, piece in pieces(data):
                header = {"op": "piece", "blob": key, "offset": offset, "size": data.nbytes}
                self._link.send(header, piece)
                await self._link.drain()
                progress(piece.nbytes)
            self._known.add(key)

    def forget(self, keys: list[str]) -> None:
        """Note that the node does not have these blobs."""
        self._known.difference_update(keys)

    async def fetch(self, key: str, size: int) -> memoryview:
        """Return a blob of the node, as memory that can be written to."""
        number = next(self._numbers)
        self._fetching[number] = memoryview(bytearray(size))
        try:
            return await self._fetched(number, key, size)
        finally:
            del self._fetching[number]

    def load(
        self, packed: Message, learn: Callable[[dict[int, Any]], None] = lambda objects: None
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
                return background.wait(self.fetch(data["blob"], data["size"]))
            return bytearray(data)

        buffers = [part(buffer) for buffer in packed["buffers"]]
        value, memo = load_with_memo(part(packed["stream"]), buffers)
        learn({token: memo[place] for place, token in packed.get("tokens", {}).items()})
        return value

    def close(self) -> None:
        """Let go of the agent; it goes on."""
        self._on_lost = lambda connection: None
        if self._link:
            self._link.close()

    async def _fetched(self, number: int, key: str, size: int) -> memoryview:
        if self._link is None or self._link.closed:
            raise ClusterLost("the node's agent is gone")
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._link.send({"op": "fetch", "id": number, "blob": key, "size": size})
        try:
            message = await answer
        finally:
            self._answers.pop(number, None)
        if "error" in message:
            raise SkyError(message["error"])
        return self._fetching[number]

    def _place(self, message: Message, size: int) -> memoryview:
        whole = self._fetching.get(message.get("piece", 0))
        if whole is None:
            return memoryview(bytearray(size))
        return whole[message["offset"] : message["offset"] + size]

    def _receive(self, message: Message, payload: memoryview) -> None:
        if "welcome" in message:
            self.on_welcome(self, message)
        if "re" in message:
            answer = self._answers.get(message["re"])
            if answer and not answer.done():
                answer.set_result(message)
            return
        if "report" in message:
            self.on_report(message["report"])
            return
        if "event" not in message:
            return
        self.last = message["n"]
        event = decode_event(message)
        if isinstance(event, Forgotten):
            self.forget(event.digests)
        self._on_event(self, event)

    def _closed(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ClusterLost("the node's agent is gone"))
        self._on_lost(self)
