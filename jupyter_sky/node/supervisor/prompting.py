"""The prompts of a node's ranks, which are answered if the user is gone.

A rank at a prompt keeps its run, and with it a node that costs money, for as long as it waits. So
ranks go on without an answer if there has been no notebook for ten minutes, and also if there is
one, but its user has answered nothing for as long as the cluster may be idle: a notebook that
somebody has left open at a breakpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from jupyter_sky.formatting import format_duration
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.debugging import (
    LONGEST_ANSWER,
    AnswerCommand,
    AnswerRequest,
    HoldCommand,
    HoldRequest,
)

GONE_AFTER = 600.0
"""Seconds without a notebook after which ranks at a prompt go on.

A laptop that was closed for minutes comes back: its user wants to go on at the prompt.
"""

_LOOK_EVERY = 1.0


class Prompting:
    """Passes answers to the ranks of a node, and answers in place of a user who is gone.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    is_attended
        Returns whether a notebook is connected.
    unanswered
        Seconds without any answer after which ranks continue, even if a notebook is connected;
        ``None`` for never.
    gone_after
        Seconds without a notebook after which they continue.
    """

    def __init__(
        self,
        ranks: Mapping[int, RankProcess],
        is_attended: Callable[[], bool],
        unanswered: float | None = None,
        gone_after: float = GONE_AFTER,
    ) -> None:
        self._is_attended = is_attended
        self._unanswered, self._gone_after = unanswered, gone_after
        self._active = 0.0  # when the user was, by the loop's clock
        self._ranks = ranks
        self._open: dict[RankProcess, tuple[str, int]] = {}
        self._watching: asyncio.Task[None] | None = None

    def on_prompted(self, process: RankProcess, message: Message) -> None:
        """Note that a rank waits for an answer, or continues without one."""
        if message["kind"] == "over":
            return  # the answer came through us
        self._open[process] = (message["run"], message["number"])
        self._active = asyncio.get_running_loop().time()
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def answer(self, request: AnswerRequest) -> None:
        """Give a rank the answer that it waits for in a run."""
        process = self._ranks.get(request["rank"])
        if process and process.run == request["run"]:
            text = request["text"][:LONGEST_ANSWER]
            self._answer(process, request["number"], request["kind"], text)

    def hold(self, request: HoldRequest) -> None:
        """Let the ranks of a run wait for each other without a time limit.

        It is asked for from time to time while the user answers ranks, perhaps of other nodes.
        """
        self._active = asyncio.get_running_loop().time()
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
        """Answer in place of the user where there was none for too long."""
        loop = asyncio.get_running_loop()
        attended = loop.time()
        while self._forget_ended():
            limit = self._unanswered
            if limit is not None and loop.time() - self._active > limit:
                self._answer_all(f"nobody has answered its prompt for {format_duration(limit)}")
            elif self._is_attended():
                attended = loop.time()
            elif loop.time() - attended > self._gone_after:
                self._answer_all()
            await asyncio.sleep(_LOOK_EVERY)
        self._watching = None

    def _answer_all(self, reason: str = "") -> None:
        for process, (_, number) in list(self._open.items()):
            self._answer(process, number, "gone", reason)

    def _forget_ended(self) -> bool:
        """Forget the prompts of runs that have ended; return whether there are others."""
        for process, (run, _) in list(self._open.items()):
            if process.run != run:
                del self._open[process]
        return bool(self._open)
