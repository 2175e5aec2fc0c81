"""A client of an agent: it asks for things, and follows the journal at its own pace."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.node.journal import Journal
from jupyter_sky.transport.blobs import PIECE, file_name, map_privately, pieces
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.link import HIGH_WATER, Link

if TYPE_CHECKING:
    from jupyter_sky.node.agent import Agent


class Client:
    """One connection to the agent.

    A client that is slower than the events are is served from the journal when it has room again:
    neither does the agent's memory grow with it, nor does it miss anything.
    """

    def __init__(self, sock: socket.socket, agent: Agent, journal: Journal) -> None:
        self._agent = agent
        self._journal = journal
        self._next: int | None = None
        self._piece = memoryview(bytearray(PIECE))
        self._tasks: set[asyncio.Task[None]] = set()
        self._link = Link(sock, self._receive, self._closed, self._place)
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
                store = self._agent.store
                store.add(self, message["blob"], message["offset"], payload, message["size"])
            case "hello":
                since = message["since"]
                self._link.send({"re": message["id"], "welcome": True, **self._agent.welcome()})
                self._next = (self._journal.last if since is None else since) + 1
                self.pump()
            case "fetch":
                self._start(self._fetch(message))
            case _:
                self._start(self._answer(message))

    def _start(self, coroutine) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Message) -> None:
        try:
            answer = await self._agent.request(message)
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": f"the request {message.get('op')!r} is incomplete: {error}"}
        self._link.send({"re": message.get("id"), **answer})

    async def _fetch(self, message: Message) -> None:
        path = Path(self._agent.spec["blobs"]) / file_name(message["blob"])
        try:
            mapped = map_privately(path, message["size"])
        except (OSError, ValueError):
            self._link.send({"re": message["id"], "error": "this value is not kept any more"})
            return
        for offset, piece in pieces(memoryview(mapped)):
            self._link.send({"piece": message["id"], "offset": offset}, piece)
            await self._link.drain()
        self._link.send({"re": message["id"]})

    def _closed(self) -> None:
        self._agent.clients.discard(self)
        self._agent.store.leave(self)
        self._agent.watch_grace()
