"""Asks the ranks of a node about their variables.

A rank answers in a thread of its own, which may take long for a large model; the answer is passed
on as plain data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.inspection import LookedRank, LookRequest
from jupyter_sky.transport.protocol.rank_messages import LookCommand
from jupyter_sky.transport.tasks import shielded

ANSWER_WITHIN = 300.0
"""Seconds for the answer of a rank: it may have to look through all of its memory."""

_NAMES_WITHIN = 5.0
"""Seconds for names in a run: no value is looked into, and a rank may keep Python to itself."""

_SILENT_AFTER = 5.0
"""Seconds without any sign of life of a rank after which its answer is no longer waited for.

The machine may have much to do, and what a value is digested with may keep Python to itself.
"""

_LOOK_EVERY = 0.5  # seconds, whether the process that was asked is still there


class Looking:
    """Asks ranks about their variables.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    is_alive
        Returns whether a rank's process answers at all.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankProcess],
        is_alive: Callable[[RankProcess], Awaitable[bool]],
    ) -> None:
        self._ranks = ranks
        self._is_alive = is_alive
        self._number = 0
        self._asked: dict[tuple[int, int], asyncio.Future[LookedRank]] = {}

    def on_answer(self, process: RankProcess, message: Mapping[str, Any]) -> None:
        """Receive the answer of a rank."""
        answer = self._asked.get((process.rank, message["looked"]))
        if answer and not answer.done():
            answer.set_result(message["seen"])

    async def look(self, request: LookRequest) -> list[LookedRank]:
        """Return the answers of ranks, including notes on those that do not answer."""
        there = [self._ranks[rank] for rank in request["ranks"] if rank in self._ranks]
        return list(await asyncio.gather(*(self._ask(each, request) for each in there)))

    async def _ask(self, process: RankProcess, request: LookRequest) -> LookedRank:
        is_busy = process.run is not None
        if process.pid is None or (is_busy and request["what"] != "names"):
            return _no_answer(process.rank, is_busy)
        self._number += 1
        key, pid = (process.rank, self._number), process.pid
        answer = self._asked[key] = asyncio.get_running_loop().create_future()
        command: LookCommand = {
            "op": "look",
            "number": self._number,
            "busy": is_busy,
            "what": request["what"],
            "names": request["names"],
            "random": request["random"],
            "start": request["start"],
        }
        process.send_aside(command)
        now = asyncio.get_running_loop().time
        heard = now()
        until = heard + (_NAMES_WITHIN if is_busy else ANSWER_WITHIN)
        try:
            while process.pid == pid and now() < min(until, heard + _SILENT_AFTER):
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(shielded(answer), _LOOK_EVERY)
                if await self._is_alive(process):
                    heard = now()
            return _no_answer(process.rank, is_busy=False)
        finally:
            del self._asked[key]


def _no_answer(rank: int, is_busy: bool) -> LookedRank:
    return {
        "rank": rank,
        "state": "busy" if is_busy else "silent",
        "trouble": "",
        "names": [],
        "more": 0,
        "parts": [],
        "numbers": b"",
        "sampled": False,
    }
