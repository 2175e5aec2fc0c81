"""A client of an agent: it asks for things, and follows the journal at its own pace."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.node.journal import Journal
from jupyter_sky.transport.blobs import PIECE, file_name, map_privately, pieces
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.link import HIGH_WATER, Link

if TYPE_CHECKING:
    from jupyter_sky.node.agent import Agent

SILENCE = 30.0
"""Seconds without a sign of life after which a client is taken to be gone."""

_MOST_CALLERS = 64


class Callers:
    """What each client has asked for, over one connection after the other.

    A client whose link broke asks again on the next one, with the same number: what is under way
    then is not begun a second time.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._tasks: dict[str, dict[int, asyncio.Task[Message]]] = {}

    def task(self, token: str, message: Message) -> asyncio.Task[Message]:
        """Return what becomes the answer."""
        tasks = self._tasks.pop(token, {})
        self._tasks[token] = tasks
        while len(self._tasks) > _MOST_CALLERS:
            del self._tasks[next(iter(self._tasks))]
        for number in [number for number in tasks if number < message.get("settled", 0)]:
            del tasks[number]
        number = message["id"]
        if number not in tasks:
            loop = asyncio.get_running_loop()
            tasks[number] = loop.create_task(self._answer(message))
        return tasks[number]

    async def _answer(self, message: Message) -> Message:
        try:
            return await self._agent.request(message)
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"the request {message.get('op')!r} is incomplete: {error}"}


class Client:
    """One connection to the agent.

    A client that is slower than the events are is served from the journal when it has room again:
    neither does the agent's memory grow with it, nor does it miss anything.
    """

    def __init__(self, sock: socket.socket, agent: Agent, journal: Journal) -> None:
        self._agent = agent
        self._journal = journal
        self._token = ""
        self._next: int | None = None
        self._piece = memoryview(bytearray(PIECE))
        self._tasks: set[asyncio.Task[None]] = set()
        self._link = Link(sock, self._receive, self._closed, self._place, SILENCE)
        self._link.on_drained = self.pump

    def pump(self) -> None:
        """Send the events that the client has not seen, as long as it takes them."""
        if self._next is None:
            return
        while self._next <= self._journal.last and self._link.unsent_bytes < HIGH_WATER:
            self._link.send_encoded(self._journal.frame(self._next))
            self._next += 1

    def tell(self, message: Message) -> None:
        """Send something that is not worth a journal, unless the client is behind already."""
        if self._next is not None and not self._link.unsent_bytes:
            self._link.send(message)

    def _place(self, message: Message, size: int) -> memoryview:
        if message.get("op") != "piece":
            raise ProtocolError("only pieces of blobs have a payload")
        if size > PIECE:
            raise ProtocolError(f"a piece of {size} bytes is too large")
        return self._piece[:size]

    def _receive(self, message: Message, payload: memoryview) -> None:
        match message["op"]:
            case "piece":
                piece = expand(message, payload, PIECE)
                self._agent.store.add(message["blob"], message["offset"], piece, message["size"])
            case "hello":
                self._greet(message)
            case "follow":
                self._follow(message["since"])
            case "fetch":
                self._start(self._fetch(message))
            case _:
                self._start(self._answer(message))

    def _greet(self, message: Message) -> None:
        self._token = message["token"]
        missing = [key for key in message["blobs"] if key not in self._agent.store]
        self._link.send({"welcome": True, "missing": missing, **self._agent.welcome()})
        if message["since"] is not None:
            self._follow(message["since"])

    def _follow(self, since: int) -> None:
        self._next = since + 1
        self._agent.seen(since)
        self.pump()

    def _start(self, coroutine) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Message) -> None:
        answer = await asyncio.shield(self._agent.callers.task(self._token, message))
        self._link.send({"re": message["id"], **answer})

    async def _fetch(self, message: Message) -> None:
        path = Path(self._agent.spec["blobs"]) / file_name(message["blob"])
        try:
            mapped = map_privately(path, message["size"])
        except (OSError, ValueError):
            self._link.send({"re": message["id"], "error": "this value is not kept any more"})
            return
        start = message["offset"]
        for offset, piece in pieces(memoryview(mapped)[start:]):
            self._link.send({"piece": message["id"], "offset": start + offset}, piece)
            await self._link.drain()
        self._link.send({"re": message["id"]})

    def _closed(self) -> None:
        self._agent.clients.discard(self)
        self._agent.idle.look()
