"""A client of an agent: it asks for things, and follows the journal at its own pace."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

import jupyter_sky
from jupyter_sky.node.agent.journal import Journal
from jupyter_sky.serialization.blobs import PIECE, file_name, map_privately, pieces
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.link import HIGH_WATER, Link

if TYPE_CHECKING:
    from jupyter_sky.node.agent.server import Agent

SILENCE = 30.0
"""Seconds without a sign of life after which a client is taken to be gone."""

ANY_VERSION = frozenset({"end", "interrupt", "log"})
"""What a client of another version may ask for: to read, to stop, and to end."""

_MOST_CALLERS = 64
_INCOMPLETE = (KeyError, TypeError, ValueError)

Answer = Message | asyncio.Task[Message]
"""An answer, or what becomes one: most are there at once, and cost no task."""


class RequestCache:
    """What each client has asked for, over one connection after the other.

    A client whose link broke asks again on the next one, with the same number: what is under way
    then is not begun a second time.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._answers: dict[str, dict[int, Answer]] = {}

    def answer(self, token: str, message: Message) -> Answer:
        """Return the answer, or what becomes it."""
        answers = self._answers.pop(token, {})
        self._answers[token] = answers
        while len(self._answers) > _MOST_CALLERS:
            del self._answers[next(iter(self._answers))]
        for number in [number for number in answers if number < message.get("settled", 0)]:
            del answers[number]
        number = message["id"]
        if number not in answers:
            answers[number] = self._ask(message)
        return answers[number]

    def _ask(self, message: Message) -> Answer:
        try:
            answer = self._agent.request(message)
        except Exception as error:
            return _complaint(message, error)
        if isinstance(answer, dict):
            return answer
        return asyncio.get_running_loop().create_task(_wait(message, answer))


async def _wait(message: Message, answer: Awaitable[Message]) -> Message:
    try:
        return await answer
    except Exception as error:
        return _complaint(message, error)


def _complaint(message: Message, error: Exception) -> Message:
    """Say what is wrong: who asked waits for an answer, whatever it is."""
    trouble = "is incomplete" if isinstance(error, _INCOMPLETE) else "failed"
    return {"error": f"the request {message.get('op')!r} {trouble}: {error}"}


class Client:
    """One connection to the agent.

    A client that is slower than the events are is served from the journal when it has room again:
    neither does the agent's memory grow with it, nor does it miss anything.

    Attributes
    ----------
    uses
        Whether it is a notebook's. What others see, who only visit, counts as seen by nobody.
    """

    def __init__(self, sock: socket.socket, agent: Agent, journal: Journal) -> None:
        self._agent = agent
        self._journal = journal
        self.uses = False
        self._token = ""
        self._version = ""
        self._next: int | None = None
        self._piece = memoryview(bytearray(PIECE))
        self._tasks: set[asyncio.Task[None]] = set()
        self._link = Link(sock, self._receive, self._closed, self._place, SILENCE, self.pump)

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
            case op if op not in ANY_VERSION and self._version != jupyter_sky.__version__:
                self._answer(message["id"], {"error": self._refusal()})
            case _:
                self._answer(message["id"], self._agent.callers.answer(self._token, message))

    def _greet(self, message: Message) -> None:
        self._token = message["token"]
        self._version = message.get("version", "0.1.0")
        self.uses = not message.get("visits", False)
        self._agent.idle.look()
        missing = [key for key in message["blobs"] if key not in self._agent.store]
        shared = self._agent.used_beside(self)
        about = {"welcome": True, "missing": missing, "shared": shared}
        self._link.send({**about, **self._agent.welcome()})
        if message["since"] is not None:
            self._follow(message["since"])

    def _refusal(self) -> str:
        name, ours = self._agent.spec["cluster"], jupyter_sky.__version__
        return (
            f"cluster {name} was started by jupyter_sky {ours}, which {self._version} cannot use: "
            f"end it with `%sky down {name}` and start it anew, or install jupyter_sky {ours} "
            "where the notebook runs."
        )

    def _follow(self, since: int) -> None:
        self._next = since + 1
        if self.uses:
            self._agent.seen(since)
        self.pump()

    def _start(self, coroutine) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer(self, number: int, answer: Answer) -> None:
        if isinstance(answer, dict):
            self._link.send({"re": number, **answer})
        else:
            self._start(self._answer_later(number, answer))

    async def _answer_later(self, number: int, answer: asyncio.Task[Message]) -> None:
        self._answer(number, await asyncio.shield(answer))

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
