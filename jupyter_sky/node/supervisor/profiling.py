"""Profiles of a node's ranks: collects their sampled stacks during runs.

A rank reports every second. If C code does not release the GIL there is no report; then the system
writes its stack, as for `Inspection`, and that stack stands for the time in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast, get_args

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.inspection import SeenFrame
from jupyter_sky.transport.protocol.profiling import (
    PACKED_SIZE,
    Activity,
    ProfileAnswer,
    ProfileRequest,
    RankProfile,
    RecordedAnswer,
    RecordedRequest,
    RecordKind,
    SampleCommand,
    Sampled,
)
from jupyter_sky.transport.protocol.shape import check_for

_SILENT_AFTER = 2.5
"""Seconds without a message, from which on the system is asked; a rank tells every second."""

_POLL_EVERY = 0.5
_LAST_WITHIN = 2.0  # seconds to wait for a rank's last report
_MOST_STACKS = 2000  # most different stacks to keep of a rank
_KEPT = 4  # most profiles to keep; earlier ones may never be requested
_LONGEST = 300  # characters of a name

WrittenStack = Callable[[RankProcess], Awaitable[list[SeenFrame] | None]]

_is_sampled = check_for(Sampled)


class _Gathered:
    """The samples of a rank."""

    def __init__(self, process: RankProcess, rate: int, now: float, end: float) -> None:
        self.process = process
        self.end = end
        self.pid = process.pid
        self.heard = now
        self.over = False
        self.counts: dict[tuple[Activity, str, tuple[int, ...]], int] = {}
        self.frames: dict[tuple[str, int, str, str, bool], int] = {}
        self.asked = self.came = self.dropped = self.stuck = 0
        self.run = process.run
        self.is_script = process.runs_script
        self._rate = rate

    def add(self, message: Sampled, now: float) -> None:
        """Add a report of a rank."""
        self.heard, self.over = now, message["over"]
        # Time for which the system has written stacks is not counted again.
        self.asked += message["asked"]
        self.came += message["came"]
        self.dropped += message["dropped"]
        frames = [self._number(frame) for frame in message["frames"]]
        for stack in message["stacks"]:
            numbers = tuple(frames[at] for at in stack["frames"] if 0 <= at < len(frames))
            self._count(stack["activity"], stack["thread"], numbers, stack["count"])

    def add_written(self, frames: Sequence[SeenFrame], now: float) -> None:
        """Add a stack written by the system, for the time since the rank's last report."""
        count = round((min(now, self.end) - self.heard) * self._rate)
        self.heard = now
        if count <= 0:
            return
        self.stuck += count
        self._count("compute", "", tuple(self._number(frame) for frame in frames), count)

    def _number(self, frame: SeenFrame) -> int:
        key = (
            frame["place"][:_LONGEST],
            frame["line"],
            frame["function"][:_LONGEST],
            frame["text"][:_LONGEST],
            frame["own"],
        )
        return self.frames.setdefault(key, len(self.frames))

    def _count(self, activity: Activity, thread: str, stack: tuple[int, ...], count: int) -> None:
        key = (activity, thread, stack)
        if key in self.counts or len(self.counts) < _MOST_STACKS:
            self.counts[key] = self.counts.get(key, 0) + count
        else:
            self.dropped += count

    def profile(self) -> RankProfile:
        """Return all of it."""
        return {
            "rank": self.process.rank,
            "run": self.run,
            "is_script": self.is_script,
            # While the system wrote stacks, the rank did not report; it counts that time itself
            # once it can.
            "asked": max(self.asked, self.came + self.stuck),
            "came": self.came,
            "stuck": self.stuck,
            "dropped": self.dropped,
            "frames": [
                {"place": place, "line": line, "function": function, "text": text, "own": own}
                for place, line, function, text, own in self.frames
            ],
            "stacks": [
                {"count": count, "activity": activity, "thread": thread, "frames": list(stack)}
                for (activity, thread, stack), count in self.counts.items()
            ],
        }


class Profiles:
    """Lets the ranks of a node sample their stacks, and collects the samples.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    written_stack
        Lets the system write the stack of a rank.
    """

    def __init__(self, ranks: Mapping[int, RankProcess], written_stack: WrittenStack) -> None:
        self._ranks = ranks
        self._written_stack = written_stack
        self._number = 0
        self._gathered: dict[int, dict[int, _Gathered]] = {}
        self._watching: dict[int, asyncio.Task[None]] = {}

    def begin(self, request: ProfileRequest) -> ProfileAnswer:
        """Begin to sample ranks; return what they are doing."""
        self._number += 1
        now = asyncio.get_running_loop().time()
        chosen = [self._ranks[rank] for rank in request["ranks"] if rank in self._ranks]
        gathered = {
            process.rank: _Gathered(process, request["rate"], now, now + request["seconds"])
            for process in chosen
            if process.pid
        }
        self._gathered[self._number] = gathered
        while len(self._gathered) > _KEPT:
            self._forget(next(iter(self._gathered)))
        for each in gathered.values():
            command: SampleCommand = {
                "op": "sample",
                "number": self._number,
                "seconds": request["seconds"],
                "rate": request["rate"],
            }
            each.process.send_aside(command)
        self._watching[self._number] = asyncio.get_running_loop().create_task(
            self._watch(list(gathered.values()), now + request["seconds"])
        )
        return self._answer(self._number)

    def on_sampled(self, process: RankProcess, message: Mapping[str, Any]) -> None:
        """Receive samples of a rank."""
        gathered = self._gathered.get(message["sampled"], {}).get(process.rank)
        if gathered and gathered.pid == process.pid and _is_sampled(message):
            gathered.add(cast(Sampled, message), asyncio.get_running_loop().time())

    async def take(self, number: int) -> ProfileAnswer:
        """End a profile, and return its samples.

        Raises
        ------
        ValueError
            If there is no such profile.
        """
        if number not in self._gathered:
            raise ValueError(f"there is no profile {number}")
        gathered = self._gathered[number].values()
        command: SampleCommand = {"op": "sample", "number": number, "seconds": 0.0, "rate": 1}
        loop = asyncio.get_running_loop()
        for each in gathered:
            each.end = min(each.end, loop.time())
            if each.process.pid == each.pid and not each.over:
                each.process.send_aside(command)
        until = loop.time() + _LAST_WITHIN
        while loop.time() < until and any(map(_is_to_come, gathered)):
            await asyncio.sleep(0.02)
        await self._ask_system(gathered, loop.time(), 0.0)
        answer = self._answer(number)
        self._forget(number)
        return answer

    def _forget(self, number: int) -> None:
        self._gathered.pop(number, None)
        if watching := self._watching.pop(number, None):
            watching.cancel()

    def _answer(self, number: int) -> ProfileAnswer:
        ranks = [each.profile() for each in self._gathered[number].values()]
        return {"number": number, "ranks": ranks}

    async def _watch(self, gathered: Sequence[_Gathered], end: float) -> None:
        """Let the system write stacks of ranks that do not report."""
        loop = asyncio.get_running_loop()
        while loop.time() < end and any(map(_is_to_come, gathered)):
            await asyncio.sleep(_POLL_EVERY)
            await self._ask_system(gathered, loop.time(), _SILENT_AFTER)

    async def _ask_system(
        self, gathered: Sequence[_Gathered] | Any, now: float, silent_after: float
    ) -> None:
        silent = [each for each in gathered if now - each.heard >= silent_after]
        await asyncio.gather(*(self._ask_for(each) for each in silent if _is_to_come(each)))

    async def _ask_for(self, gathered: _Gathered) -> None:
        with contextlib.suppress(OSError):
            frames = await self._written_stack(gathered.process)
            if frames and _is_to_come(gathered):
                gathered.add_written(frames, asyncio.get_running_loop().time())


def _is_to_come(gathered: _Gathered) -> bool:
    """Return whether a rank still has to report."""
    return not gathered.over and gathered.pid == gathered.process.pid and not gathered.is_script


class Records:
    """The recordings of ranks in the last runs, until they are requested."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int, str], bytes] = {}

    def add(self, process: RankProcess, message: Mapping[str, Any]) -> None:
        """Keep a recording of a rank; drop those of earlier runs."""
        run, data = message["recorded"], message["data"]
        kept = [*dict.fromkeys(key[0] for key in self._records if key[0] != run)][-1:]
        self._records = {key: each for key, each in self._records.items() if key[0] in (run, *kept)}
        if len(data) <= PACKED_SIZE and message["kind"] in get_args(RecordKind):
            self._records[run, process.rank, message["kind"]] = data

    def part(self, request: RecordedRequest) -> RecordedAnswer:
        """Return a part of a record; an empty one if there is none."""
        data = self._records.get((request["run"], request["rank"], request["kind"]), b"")
        start = request["offset"]
        part = data[start : start + request["limit"]]
        return {"data": part, "size": len(data), "clock": time.time_ns()}
