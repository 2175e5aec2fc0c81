"""The logs of ranks, for clients: read part by part, and followed to their ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from jupyter_sky.node.clock import steady_time
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import Handlers, LogAnswer, LogRequest

READ_WITHIN = 3.0
"""Seconds that followers get to read the ends of logs, and in which each must ask for more."""

_LOOK_EVERY = 0.02  # seconds


@dataclass
class _Follower:
    """A client that follows logs.

    Attributes
    ----------
    asked
        When it has asked last, by the loop's clock.
    has
        By rank, the offset before which it has everything.
    """

    asked: float = 0.0
    has: dict[int, int] = field(default_factory=dict)


class Logs:
    """Reads the logs of a node's ranks for clients.

    Parameters
    ----------
    ranks
        The ranks by number.
    clients
        The tokens of the clients that are connected.
    """

    def __init__(self, ranks: Mapping[int, RankProcess], clients: Container[str]) -> None:
        self.handlers: Handlers = {"log": self._on_log}
        self._ranks, self._clients = ranks, clients
        self._followers: dict[str, _Follower] = {}

    async def end(self) -> None:
        """Let followers read the ends of logs, to which ended ranks add nothing any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_WITHIN):
                while any(self._reads_on(client) for client in self._followers):
                    await asyncio.sleep(_LOOK_EVERY)

    def _reads_on(self, client: str) -> bool:
        """Return whether a follower lacks the end of a log, and seems to be there to read it."""
        follower, now = self._followers[client], asyncio.get_running_loop().time()
        if client not in self._clients or now - follower.asked > READ_WITHIN:
            return False
        logs = {rank: self._ranks[rank].log for rank in follower.has if rank in self._ranks}
        return any(follower.has[rank] < log.size for rank, log in logs.items())

    def _on_log(self, request: LogRequest) -> LogAnswer | Message:
        process = self._ranks.get(request["rank"])
        if process is None:
            said = f"rank {request['rank']} is gone: the cluster was scaled"
            return {"error": said, "gone": True}
        if (follows := request.get("follows")) is True:
            self._note_follower(request)
        elif follows is False:
            self._followers.pop(request["client"], None)
        process.drain()
        log = process.log
        start = log.kept_from(request["offset"])
        if request["tail"] is not None:
            start = log.tail_start(request["tail"], request["limit"])
        data = log.read(start, request["limit"])
        end = start + len(data)
        return {
            "data": data,
            "start": start,
            "size": log.size,
            "pieces": log.index.pieces(start, end),
            "runs": log.index.runs(start, end),
            "clock": steady_time(),
        }

    def _note_follower(self, request: LogRequest) -> None:
        client = request["client"]
        if client not in self._followers:
            there = {each: kept for each, kept in self._followers.items() if each in self._clients}
            self._followers = {**there, client: _Follower()}
        follower = self._followers[client]
        follower.asked = asyncio.get_running_loop().time()
        follower.has[request["rank"]] = request["offset"]
