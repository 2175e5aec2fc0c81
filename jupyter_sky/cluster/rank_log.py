"""A part of a rank's log: the bytes, and their index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network import incoming
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import (
    ANSWER_WITHIN,
    LINK_WITHIN,
    LOOK_LINK_WITHIN,
    malformed,
)
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.transport.event_loop import wait
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import LoggedPiece, LoggedRun
from jupyter_sky.transport.tasks import cancel_all

LIMIT = 4 * 1024 * 1024
"""Bytes of a log at once."""

_LEFT_WITHIN = 1.0  # seconds

_OTHERS_WITHIN = 1.0
"""Seconds that the first node to answer waits for others: what they have is shown in order."""

_CLOCKS_AGREE = 1.0  # seconds


@dataclass(frozen=True)
class LogEntry:
    """Output of a rank to one stream, or the beginning of a run.

    Attributes
    ----------
    time
        When it was written, in seconds since the epoch; nothing is older than what precedes it.
    data
        The output; empty for the beginning of a run.
    stream
        ``"stdout"``, ``"stderr"``, or ``"log"`` for output that is only in the log.
    run, title
        The run that begins here; ``None`` if there is none.
    """

    rank: int
    time: float
    data: bytes = b""
    stream: str = "stdout"
    run: str | None = None
    title: str = ""


@dataclass(frozen=True)
class LogPart:
    """A part of a rank's log.

    Attributes
    ----------
    data
        The bytes.
    start
        Their offset in the log.
    size
        The size of the whole log in bytes.
    pieces, runs
        The index of this part; the first of each may begin before ``start``.
    dropped
        Requested bytes before it that the log has not kept.
    """

    rank: int
    data: bytes
    start: int
    size: int
    pieces: Sequence[LoggedPiece]
    runs: Sequence[LoggedRun]
    dropped: int = 0

    @property
    def note(self) -> bytes:
        """A line that says what is missing before it; empty if nothing is."""
        if not self.dropped:
            return b""
        return (
            f"\n[… {format_bytes(self.dropped)} are missing here: of a log that is very long the "
            "beginning and the end are kept …]\n"
        ).encode()

    @property
    def end(self) -> int:
        """The offset of the next part."""
        return self.start + len(self.data)

    def of_run(self, run: str) -> bytes:
        """Return what is in it from the beginning of a run on.

        Of a run without output the index says nothing; a log that was cut from outside has none.
        """
        nothing = self.end if self.runs else self.start
        begin = next((offset for offset, _, each, _ in self.runs if each == run), nothing)
        return self.data[max(0, begin - self.start) :]

    def entries(self) -> Iterator[LogEntry]:
        """Yield the output in order, preceded by the beginnings of runs."""
        runs, pieces = list(self.runs), list(self.pieces)
        if self.dropped:
            written = pieces[0][1] if pieces else 0.0
            yield LogEntry(self.rank, written, self.note, "log")
        offsets = {self.start, *(run[0] for run in runs), *(piece[0] for piece in pieces)}
        bounds = [*sorted(max(self.start, offset) for offset in offsets), self.end]
        written, stream = 0.0, "stdout"
        for begin, end in pairwise(bounds):
            while runs and runs[0][0] <= begin:
                _, at, run, title = runs.pop(0)
                written = max(written, at)  # the clock may have been set back
                yield LogEntry(self.rank, written, run=run, title=title)
            while pieces and pieces[0][0] <= begin:
                _, at, stream = pieces.pop(0)
                written = max(written, at)
            data = self.data[begin - self.start : end - self.start]
            if data:
                yield LogEntry(self.rank, written, data, stream)


@dataclass(frozen=True)
class LogPlace:
    """A place in a log, from which a part of it is read.

    Attributes
    ----------
    tail
        The number of its last lines; ``None`` for the part that begins at ``offset``.
    limit
        The most bytes.
    """

    tail: int | None = None
    offset: int = 0
    limit: int = LIMIT


LogParts = Mapping[int, LogPart | SkyError]
"""Parts of logs by rank, or what was in the way of reading them."""


class LogReader:
    """Reads the logs of several ranks, part by part; for the user's thread.

    All nodes are asked at once, and each for one log after the other: together they could take
    longer over a slow link than there is for an answer.

    Parameters
    ----------
    controller
        The controller of their cluster.
    follows
        Whether more is read as the logs grow, for which nodes that end wait, until `leave`.
    """

    def __init__(self, controller: Controller, follows: bool) -> None:
        self._controller, self._follows = controller, follows
        self._reading: dict[asyncio.Task[dict[int, LogPart | SkyError]], Sequence[int]] = {}

    def read(self, places: Mapping[int, LogPlace]) -> LogParts:
        """Return a part of each of several ranks' logs, or what was in the way of reading it.

        Where they are followed, it lacks those whose nodes are slower than others, and has them
        another time.
        """
        return wait(self._read(places))

    def leave(self, ranks: Iterable[int]) -> None:
        """Tell the nodes of ranks that no log is followed any more, if they answer soon."""
        wait(self._leave(ranks))

    async def _read(self, places: Mapping[int, LogPlace]) -> LogParts:
        try:
            self._ask(places)
            if self._follows:
                await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            within = _OTHERS_WITHIN if self._follows else None
            done, _ = await asyncio.wait(self._reading, timeout=within)
        except BaseException:  # Ctrl-C
            await cancel_all(self._reading)
            raise
        found: dict[int, LogPart | SkyError] = {}
        for task in done:
            del self._reading[task]
            found |= task.result()
        return {rank: found[rank] for rank in places if rank in found}

    def _ask(self, places: Mapping[int, LogPlace]) -> None:
        """Ask nodes for those of the logs that are not being read yet."""
        of = self._nodes()
        asked = {rank for ranks in self._reading.values() for rank in ranks}
        by_node: dict[Connection | None, list[int]] = {}
        for rank in places:
            if rank not in asked:
                by_node.setdefault(of.get(rank), []).append(rank)
        for ranks in by_node.values():
            reading = self._read_each({rank: places[rank] for rank in ranks})
            self._reading[asyncio.ensure_future(reading)] = ranks

    async def _read_each(self, places: Mapping[int, LogPlace]) -> dict[int, LogPart | SkyError]:
        found: dict[int, LogPart | SkyError] = {}
        for rank, place in places.items():
            try:
                found[rank] = await read(self._controller, rank, place, self._follows)
            except SkyError as error:
                found[rank] = error
        return found

    async def _leave(self, ranks: Iterable[int]) -> None:
        await cancel_all(self._reading)
        of = self._nodes()
        there = {of[rank]: rank for rank in ranks if rank in of}
        asked = {"tail": 0, "offset": 0, "limit": LIMIT, "follows": False}
        requests = (
            each.request("log", within=_LEFT_WITHIN, link_within=0.0, rank=rank, **asked)
            for each, rank in there.items()
        )
        await asyncio.gather(*requests, return_exceptions=True)

    def _nodes(self) -> dict[int, Connection]:
        return {rank: each for each in self._controller.connections for rank in each.ranks}


async def read(
    controller: Controller, rank: int, place: LogPlace, follows: bool = False
) -> LogPart:
    """Return a part of a rank's log, which its node has.

    Raises
    ------
    ClusterLost
        If the rank or its node is gone.
    SkyError
        If its node does not answer, or with what is no such part.
    """
    if rank not in controller.ranks:
        raise ClusterLost(f"rank {rank} is gone: the cluster was scaled")
    connection, tail, offset = controller.connection(rank), place.tail, place.offset
    # The end can be asked for again; who reads on from an offset would lose the place.
    link_within = LINK_WITHIN if tail is None else LOOK_LINK_WITHIN
    before = time.time()
    asked: Message = {"tail": tail, "offset": offset, "limit": place.limit}
    if follows:
        asked["follows"] = True
    # A node that is busy answers later: whoever follows its log waits for that until Ctrl-C.
    within = None if follows else ANSWER_WITHIN
    answer = await connection.request(
        "log", within=within, link_within=link_within, rank=rank, **asked
    )
    if not incoming.is_log_part(answer, tail, offset, place.limit):
        raise malformed(connection.name, "log")
    ahead = _ahead(answer["clock"], before, time.time())
    pieces = [(at, written - ahead, stream) for at, written, stream in answer["pieces"]]
    runs = [(at, began - ahead, run, title) for at, began, run, title in answer["runs"]]
    data, start, size = (answer[name] for name in ("data", "start", "size"))
    dropped = start - offset if tail is None else 0
    return LogPart(rank, data, start, size, pieces, runs, dropped)


def _ahead(clock: float, before: float, after: float) -> float:
    """Return by how many seconds a node's clock is ahead of ours; 0 if the two may agree.

    Parameters
    ----------
    clock
        Its time.
    before, after
        Our time when it was asked, and when its answer came.
    """
    ahead = clock - min(max(clock, before), after)
    return ahead if abs(ahead) > _CLOCKS_AGREE else 0.0
