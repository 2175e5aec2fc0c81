"""The supervisor: the ranks of a node. It starts and loses them, hears them, and stops them."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from jupyter_sky.node.supervisor.exit_reason import ExitReasons, last_words
from jupyter_sky.node.supervisor.log_file import Log
from jupyter_sky.node.supervisor.output_forwarder import OutputForwarder, Publish
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.node.supervisor.rate_limiter import RateLimiter
from jupyter_sky.transport.events import Event, Prepared, RankExited, RankStarted
from jupyter_sky.transport.frames import Message

BREAK_AFTER = 0.2
"""Seconds after an interrupt when a rank that still runs is taken to be inside a collective."""

PEERS_AFTER = 1.0
"""Seconds that the other ranks of a run get to end by themselves when one has failed."""

END_WITHIN = 3.0
"""Seconds that ranks get for their last words."""

_MOST_STILLBIRTHS = 3
_LOOK_EVERY = 0.005


class Supervisor:
    """The ranks of a node.

    Parameters
    ----------
    places
        ``rank`` and ``env`` of each rank.
    fork_server
        Socket to the fork server, which forks them.
    logs
        Folder of their logs.
    publish
        Takes what happens, as it goes over the wire.
    on_lost
        Called when the fork server has ended, and all ranks with it.

    Attributes
    ----------
    ranks
        The ranks by number.
    logs
        Their logs, also of ranks that are there no more.
    prepared
        The versions of what the fork server has imported; ``None`` until it has.
    ending
        Set when ranks are expected to end.
    """

    def __init__(
        self,
        places: list[dict[str, Any]],
        fork_server: socket.socket,
        logs: Path,
        publish: Publish,
        on_lost: Callable[[], object],
    ) -> None:
        logs.mkdir(mode=0o700, exist_ok=True)
        self._folder = logs
        self.logs: dict[int, Log] = {}
        self.ranks: dict[int, RankProcess] = {}
        self.prepared: dict[str, str] | None = None
        self.ending = False
        self._places: dict[int, dict[str, Any]] = {}
        self._forks: deque[RankProcess] = deque()
        self._leaving: list[RankProcess] = []
        self._fork_server = fork_server
        self._publish = publish
        self._showing = OutputForwarder(publish)
        self._on_lost = on_lost
        self._stillbirths: dict[int, int] = {}
        self._addresses: list[str] = []
        self._store = ("", 0)
        self._reserved: asyncio.Future[int] | None = None
        self._together = False
        self._deadline = 0.0
        self._stopping: set[str] = set()
        self._refused: deque[str] = deque(maxlen=100)
        self._unwanted: set[int] = set()
        self._endings = ExitReasons()
        for place in places:
            self._take(place)

    @property
    def busy(self) -> bool:
        """Whether any rank has something to do."""
        return any(process.run for process in self.ranks.values())

    # Start and loss

    def start(self) -> None:
        """Have all ranks forked, as soon as the fork server is ready to."""
        self._fork_server.setblocking(False)
        asyncio.get_running_loop().add_reader(self._fork_server, self._hear_fork_server)
        for rank in self.ranks:
            self._fork(rank)

    def enlist(self, places: list[dict[str, Any]]) -> None:
        """Have more ranks."""
        for place in places:
            if place["rank"] not in self.ranks:
                self._take(place)
                self._fork(place["rank"])

    async def discharge(self, ranks: list[int]) -> None:
        """End ranks for good, with time for their last words."""
        former = [self.ranks.pop(rank) for rank in ranks if rank in self.ranks]
        # Of a rank that does not start any more, nothing is there to wait for.
        leaving = [process for process in former if process.pid or process in self._forks]
        self._leaving += leaving
        for process in leaving:
            process.send({"op": "end"})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_WITHIN
        while any(process in self._leaving for process in leaving):
            if loop.time() > deadline:
                for process in leaving:
                    process.signal(signal.SIGKILL)
            await asyncio.sleep(_LOOK_EVERY)

    def _take(self, place: dict[str, Any]) -> None:
        rank = place["rank"]
        self._places[rank] = place
        self._stillbirths.pop(rank, None)
        if rank not in self.logs:
            self.logs[rank] = Log(self._folder / f"rank{rank}.log")
        self.ranks[rank] = RankProcess(rank, self.logs[rank], self._hear, self._showing.take)

    def _fork(self, rank: int) -> None:
        order = {"rank": rank, "env": self._places[rank]["env"]}
        # The fork server answers in the order in which it is asked.
        self._forks.append(self.ranks[rank])
        with self.ranks[rank].descriptors() as fds:
            socket.send_fds(self._fork_server, [msgpack.packb(order)], fds)

    def _hear_fork_server(self) -> None:
        while True:
            try:
                data = self._fork_server.recv(64 * 1024)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._lose_fork_server()
                return
            message = msgpack.unpackb(data)
            if "forked" in message:
                process = self._forks.popleft()
                process.pid = message["pid"]
                if process not in self._leaving:
                    self._tell(RankStarted(process.rank, message["pid"]))
            elif "exited" in message:
                self._lose(message["exited"], message["status"])
            elif "prepared" in message:
                self.prepared = message["prepared"]
                self._tell(Prepared(message["prepared"], message["missing"]))

    def _lose_fork_server(self) -> None:
        # Its ranks ended with it. There is nothing to go on with: what it had imported is gone.
        asyncio.get_running_loop().remove_reader(self._fork_server)
        for process in self.ranks.values():
            if process.pid:
                process.signal(signal.SIGKILL)
                self._bury(process, "its node's fork server ended", again=False)
        self._on_lost()

    def _lose(self, pid: int, status: int) -> None:
        everyone = [*self.ranks.values(), *self._leaving]
        process = next((p for p in everyone if p.pid == pid), None)
        if process is None:
            return
        if process in self._leaving:
            self._leaving.remove(process)
            process.close()
            return
        if self.ending:
            process.close()
            return
        # A rank that ends again and again before it has done anything will not get better.
        wanted = pid in self._unwanted
        self._unwanted.discard(pid)
        alone = process.run is None and not wanted
        births = self._stillbirths.get(process.rank, 0) + 1 if alone else 0
        self._stillbirths[process.rank] = births
        again = births < _MOST_STILLBIRTHS
        self._bury(process, self._endings.reason(status), again)
        if again:
            self._fork(process.rank)

    def _bury(self, process: RankProcess, reason: str, again: bool) -> None:
        pid, run = process.pid or 0, process.run
        process.drain()
        self._showing.rest(process)
        process.close()
        if process.rank == 0 and self._reserved and not self._reserved.done():
            self._reserved.set_exception(ValueError(f"rank 0 is lost, {reason}"))
        self._tell(RankExited(process.rank, pid, reason, run, last_words(process), again))
        if run and self._together:
            self.stop(run, self._deadline)

    # What they are told

    def run(self, message: Message) -> str | None:
        """Have ranks do a run; return what is in the way, if something is."""
        if message["run"] in self._refused:
            return "the run was stopped before it began"
        processes = [self.ranks[rank] for rank in message["ranks"] if rank in self.ranks]
        for process in processes:
            if process.pid is None:
                return f"rank {process.rank} is not there"
            if process.run:
                return f"rank {process.rank} is busy with another run"
        self._together = message["together"]
        self._deadline = message["deadline"]
        for process in processes:
            process.run = message["run"]
            process.began = process.log.size
            process.shown = process.rank in message["show"]
            process.gates = (
                {"stdout": RateLimiter(), "stderr": RateLimiter()} if process.shown else {}
            )
            process.send(
                {
                    **message,
                    "names": process.take(message["names"]),
                    "values": message["values"].get(process.rank, []),
                }
            )
        return None

    async def reserve(self, message: Message) -> int:
        """Have the head listen; return the port."""
        self._reserved = asyncio.get_running_loop().create_future()
        self.ranks[message["rank"]].send(message)
        return await self._reserved

    def form(self, message: Message) -> None:
        """Have all ranks enter a process group."""
        topology = message["topology"]
        nodes = topology["nodes"]
        self._store = (topology["head_addr"], topology["head_port"])
        elsewhere = [node for node in nodes if not self.ranks.keys() & set(node["ranks"])]
        self._addresses = sorted({node["addr"] for node in elsewhere})
        for process in self.ranks.values():
            process.forming = topology["generation"]
            process.send({**message, "names": process.take(message["names"])})

    async def abandon(self, patience: float) -> None:
        """Have ranks let go of a group that is not wanted any more, and return when they have.

        Parameters
        ----------
        patience
            Seconds for them to come to its end: where all are there, that is soonest.
        """
        meant = {process: process.forming for process in self._forming}

        def left() -> list[RankProcess]:
            # One that forms the next group already is done with this one.
            return [process for process, group in meant.items() if process.forming == group]

        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while left() and loop.time() < until:
            await asyncio.sleep(_LOOK_EVERY)
        for process in left():
            process.signal(signal.SIGINT)
        while left():
            await asyncio.sleep(BREAK_AFTER)
            for process in left():
                # Some wait in C++, and one that had not begun has not heard the interrupt.
                self._release_one(process, process.forming or 0, False, self._store)

    @property
    def _forming(self) -> list[RankProcess]:
        return [process for process in self.ranks.values() if process.forming is not None]

    def dismiss(self) -> None:
        """Have all ranks end."""
        self.ending = True
        for process in self.ranks.values():
            if process.run:
                process.signal(signal.SIGINT)
            process.send({"op": "end"})

    def kill(self, ranks: list[int]) -> None:
        """End ranks at once; fresh ones take their place."""
        for rank in ranks:
            if rank in self.ranks:
                self._unwanted.add(self.ranks[rank].pid or 0)
                self.ranks[rank].signal(signal.SIGKILL)

    def warn(self, message: Message) -> None:
        """Tell all ranks that a node is about to be taken away."""
        for process in self.ranks.values():
            process.tell({**message, "op": "leaving"})

    # Stop

    def stop(self, run: str, deadline: float) -> None:
        """Interrupt a run: first politely, then out of a collective, in the end by force."""
        processes = self._running(run)
        if not processes:
            # It may be on its way; then it does not begin.
            self._refused.append(run)
            return
        if run in self._stopping:
            return
        self._stopping.add(run)
        for process in processes:
            process.signal(signal.SIGINT)
        loop = asyncio.get_running_loop()
        loop.call_later(BREAK_AFTER, self._release_from_collectives, run)
        loop.call_later(deadline / 2, self._break, run, True)
        loop.call_later(deadline, self._kill_running, run)

    def _release_from_collectives(self, run: str) -> None:
        # More than once: a rank that is slow may not have begun when it is told first.
        if run in self._stopping and self._running(run):
            self._break(run, force=False)
            asyncio.get_running_loop().call_later(BREAK_AFTER, self._release_from_collectives, run)

    def _break(self, run: str, force: bool) -> None:
        for process in self._running(run):
            self._release_one(process, run, force)

    def _release_one(
        self,
        process: RankProcess,
        run: str | int,
        force: bool,
        store: tuple[str, int] | None = None,
    ) -> None:
        siblings = [p.pid for p in self.ranks.values() if p.pid and p is not process]
        process.break_collective(run, siblings, self._addresses, force, store)

    def _kill_running(self, run: str) -> None:
        self._stopping.discard(run)
        for process in self._running(run):
            process.signal(signal.SIGKILL)

    def _running(self, run: str) -> list[RankProcess]:
        return [process for process in self.ranks.values() if process.run == run]

    # What they say

    def _hear(self, process: RankProcess, message: Message) -> None:
        if "reserved" in message:
            if self._reserved and not self._reserved.done():
                self._reserved.set_result(message["reserved"])
            return
        match message["event"]:
            case "rank_done":
                self._done(process, message)
            case "formed":
                if process.forming == message["generation"]:
                    process.forming = None
                if message["error"] is None:
                    process.generation = message["generation"]
            case "display":
                process.send({"op": "displayed", "number": message.pop("number")})
                if not process.shown:
                    text = message["data"].get("text/plain", "")
                    process.log.append(f"{text}\n".encode())
                    return
        self._publish(message, None)

    def _done(self, process: RankProcess, message: Message) -> None:
        self._showing.rest(process)
        process.run = None
        if message["arrived"] is not None:
            process.bound(message["arrived"])
        self._stillbirths.pop(process.rank, None)
        if message["outcome"] == "error" and self._together:
            loop = asyncio.get_running_loop()
            loop.call_later(PEERS_AFTER, self.stop, message["run"], self._deadline)

    def _tell(self, event: Event) -> None:
        self._publish(event.message(), None)
