"""The prompts of a node's ranks, which are answered if the notebook is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.debugging import (
    LONGEST_ANSWER,
    AnswerCommand,
    AnswerRequest,
    HoldCommand,
    HoldRequest,
)

GONE_AFTER = 60.0
"""Seconds without a notebook after which ranks at a prompt go on: nobody would ever answer."""

_LOOK_EVERY = 1.0


class Prompting:
    """Passes answers to the ranks of a node, and answers in place of a notebook that is gone.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    is_attended
        Returns whether a notebook is connected.
    gone_after
        Seconds without a notebook after which ranks continue.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankProcess],
        is_attended: Callable[[], bool],
        gone_after: float = GONE_AFTER,
    ) -> None:
        self._is_attended = is_attended
        self._gone_after = gone_after
        self._ranks = ranks
        self._open: dict[RankProcess, tuple[str, int]] = {}
        self._watching: asyncio.Task[None] | None = None

    def on_prompted(self, process: RankProcess, message: Message) -> None:
        """Note that a rank waits for an answer, or continues without one."""
        if message["kind"] == "over":
            return  # the answer came through us
        self._open[process] = (message["run"], message["number"])
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def answer(self, request: AnswerRequest) -> None:
        """Give a rank the answer that it waits for in a run."""
        process = self._ranks.get(request["rank"])
        if process and process.run == request["run"]:
            text = request["text"][:LONGEST_ANSWER]
            self._answer(process, request["number"], request["kind"], text)

    def hold(self, request: HoldRequest) -> None:
        """Let the ranks of a run wait for each other without a time limit."""
        command: HoldCommand = {"op": "hold", "run": request["run"]}
        for process in self._ranks.values():
            if process.run == request["run"] and not process.runs_script:
                process.send_aside(command)

    def _answer(self, process: RankProcess, number: int, kind: str, text: str) -> None:
        if self._open.get(process, ("", 0))[1] == number:
            del self._open[process]
            command: AnswerCommand = {"op": "answer", "number": number, "kind": kind, "text": text}
            process.send_aside(command)

    async def _watch(self) -> None:
        """Answer in place of the notebook if there was none for too long."""
        loop = asyncio.get_running_loop()
        attended = loop.time()
        while self._forget_ended():
            if self._is_attended():
                attended = loop.time()
            elif loop.time() - attended > self._gone_after:
                for process, (_, number) in list(self._open.items()):
                    self._answer(process, number, "gone", "")
            await asyncio.sleep(_LOOK_EVERY)
        self._watching = None

    def _forget_ended(self) -> bool:
        """Forget the prompts of runs that have ended; return whether there are others."""
        for process, (run, _) in list(self._open.items()):
            if process.run != run:
                del self._open[process]
        return bool(self._open)
