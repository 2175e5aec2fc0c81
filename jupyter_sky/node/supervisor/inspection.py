"""Finds out what the ranks of a node are doing, even while they cannot run Python code.

Normally the side thread of a rank answers. A rank that does not answer is suspended, starved, or in
a call into C that does not release the GIL: only the last one writes its main thread's stack on a
signal. For some instructions of each call from C to Python the stack is inconsistent, and a signal
at which it is read just then ends the process (CPython 3.11 and 3.12).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.inspection import SeenFrame, SeenRank
from jupyter_sky.transport.protocol.rank_messages import InspectCommand, Inspected
from jupyter_sky.transport.tasks import shielded

ANSWER_WITHIN = 1.0
"""Seconds for the answer of a rank; others on its machine may have all processors."""

_WRITTEN_WITHIN = 0.5
_POLL_EVERY = 0.01
_TURNS = 0.2
"""Processor seconds of a main thread that runs Python in which a side thread had its turn."""


class _Asked:
    """A question to a process, and its answer."""

    def __init__(self, pid: int | None, number: int) -> None:
        self.pid = pid
        self.number = number
        self.used = stacks.MainThreadState.of(pid).used
        self.until = asyncio.get_running_loop().time() + ANSWER_WITHIN
        self.answer: asyncio.Future[Inspected] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Inspected | None:
        """Wait for the answer; return ``None`` if it does not arrive in time."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(shielded(self.answer), ANSWER_WITHIN)
        return None


class Inspection:
    """Asks the ranks of a node what they are doing.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    was_stopped
        Returns whether a run was stopped.
    """

    def __init__(
        self, ranks: Mapping[int, RankProcess], was_stopped: Callable[[str], bool]
    ) -> None:
        self._ranks = ranks
        self._was_stopped = was_stopped
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def on_answer(self, process: RankProcess, message: Mapping[str, Any]) -> None:
        """Receive the answer of a rank."""
        asked = self._asked.get(process.rank)
        if asked and asked.number == message["inspected"] and not asked.answer.done():
            answer: Any = message
            asked.answer.set_result(answer)

    async def inspect(self, after: float = 0.0) -> list[SeenRank]:
        """Return what all ranks with a process are doing.

        Parameters
        ----------
        after
            If greater than 0, return nothing unless one of them has waited that many seconds or is
            failing.
        """
        there = [process for process in self._ranks.values() if process.pid]
        if after > 0:
            busy = [process for process in there if process.run and not process.runs_script]
            found = await asyncio.gather(*(self._ask(process, brief=True) for process in busy))
            waiting = [each["seconds"] for one in found if one for each in one["collectives"]]
            is_failing = any(one["failing"] for one in found if one)
            if max(waiting, default=0.0) < after and not is_failing:
                return []
        return list(await asyncio.gather(*map(self._look, there)))

    async def is_alive(self, process: RankProcess) -> bool:
        """Return whether a rank answers, in whatever it is busy."""
        return await self._ask(process, brief=True) is not None

    async def _look(self, process: RankProcess) -> SeenRank:
        seen: SeenRank = {
            "rank": process.rank,
            "run": process.run,
            "ended": process.ended,
            "answered": "itself",
            "frames": [],
            "collectives": [],
            "recent": [],
            "children": _dead_children(process.pid),
            "stopping": process.run is not None and self._was_stopped(process.run),
        }
        said = await self._ask(process, brief=False)
        frames = await self.written_stack(process) if said is None else None
        if said is None and (late := self._asked.get(process.rank)) and late.answer.done():
            # It was merely slow: the machine is busy.
            said = await self._ask(process, brief=False)
        if said is not None:
            seen["frames"], seen["recent"] = said["frames"], said["recent"]
            seen["collectives"], seen["prompt"] = said["collectives"], said["prompt"]
            seen["failing"] = process.run is not None and said["failing"]
            seen["beside"] = said["beside"]
        else:
            seen["answered"] = "nobody" if frames is None else "system"
            seen["frames"] = frames or []
        return seen

    async def _ask(self, process: RankProcess, brief: bool) -> Inspected | None:
        """Return the answer of a rank; ``None`` if it does not arrive in time."""
        async with self._locks[process.rank]:
            before = self._asked.get(process.rank)
            if before and before.pid == process.pid and await before.wait() is None:
                # More questions would fill the socket, which a Stop needs.
                return None
            return await self._send(process, brief).wait()

    def _send(self, process: RankProcess, brief: bool) -> _Asked:
        self._number += 1
        asked = self._asked[process.rank] = _Asked(process.pid, self._number)
        command: InspectCommand = {"op": "inspect", "number": self._number, "brief": brief}
        process.send_aside(command)
        return asked

    async def written_stack(self, process: RankProcess) -> list[SeenFrame] | None:
        """Let the system write a rank's stack; return ``None`` if even that fails."""
        file, pid = process.stacks, process.pid
        if file is None or pid is None or os.fstat(file).st_size < stacks.NAMES_SIZE:
            return None  # its process has just begun: the signal would end it
        if not await self._is_in_one_call(process):
            return None
        os.ftruncate(file, stacks.NAMES_SIZE)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, stacks.STACKS_SIGNAL)
        until = asyncio.get_running_loop().time() + _WRITTEN_WITHIN
        data = b""
        while process.pid == pid and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_POLL_EVERY)
            data = os.pread(file, os.fstat(file).st_size, 0) if process.pid == pid else b""
            if stacks.is_whole(data):
                break
        return stacks.parse_dump(data) if len(data) > stacks.NAMES_SIZE else None

    async def _is_in_one_call(self, process: RankProcess) -> bool:
        """Return whether the main thread of a rank sleeps, or keeps Python to itself."""
        asked = self._asked.get(process.rank)
        if asked is None or asked.pid != process.pid or asked.answer.done():
            asked = self._send(process, brief=True)
        while not asked.answer.done() and process.pid == asked.pid:
            main = stacks.MainThreadState.of(process.pid)
            if main.is_asleep or main.used - asked.used >= _TURNS:
                return True
            if asyncio.get_running_loop().time() >= asked.until:
                break
            await asyncio.sleep(_POLL_EVERY)
        return False


def _dead_children(pid: int | None) -> list[int]:
    with contextlib.suppress(psutil.Error, OSError):
        children = psutil.Process(pid).children()
        return [each.pid for each in children if each.status() == psutil.STATUS_ZOMBIE]
    return []
