"""Ports that the head reserves for process groups and scripts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.rank_messages import ReserveCommand
from jupyter_sky.transport.protocol.topology import ReserveRequest


class Reservations:
    """Lets the head listen on ports; two notebooks may ask at the same time.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    """

    def __init__(self, ranks: Mapping[int, RankProcess]) -> None:
        self._ranks = ranks
        self._numbers = itertools.count(1)
        self._asked: dict[tuple[int, int], asyncio.Future[Message]] = {}

    async def reserve(self, request: ReserveRequest) -> Message:
        """Let the head listen on a port; return the port, or the error if there is none."""
        rank, number = request["rank"], next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[rank, number] = answer
        command: ReserveCommand = {**request, "op": "reserve", "number": number}
        self._ranks[rank].send(command)
        try:
            return await answer
        finally:
            del self._asked[rank, number]

    def on_answer(self, process: RankProcess, message: Message) -> None:
        """Receive the answer of the head."""
        answer = self._asked.get((process.rank, message["reserved"]))
        if answer and not answer.done():
            answer.set_result({key: message[key] for key in ("port", "error") if key in message})

    def fail(self, reason: str) -> None:
        """Give up what the head has not answered: it is lost."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result({"error": reason})
