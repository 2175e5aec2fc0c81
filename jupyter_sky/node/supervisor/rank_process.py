"""A rank as its agent sees it: a process, its streams, its log, and what it is doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_sky.node.supervisor.log_file import Log
from jupyter_sky.node.supervisor.rate_limiter import RateLimiter
from jupyter_sky.transport.frames import Message, encode
from jupyter_sky.transport.link import Link

_READ = 256 * 1024

OnOutput = Callable[["RankProcess", str, bytes, int], None]
OnMessage = Callable[["RankProcess", Message], None]


class RankProcess:
    """One rank of this node.

    Attributes
    ----------
    rank
        Its number in the group.
    pid
        Its process id, also that of its process group; ``None`` until it is forked.
    run
        The run that it is busy with, if any.
    shown
        Whether what it prints in this run goes to the clients, beside its log.
    gates
        For each stream that is shown, what limits how much of it is.
    began
        Where in its log the run that it did last begins.
    forming
        The generation of the process group that it is about to join, if any.
    generation
        The process group that it joined last.
    names
        The content digest of each name that it was sent last.
    """

    def __init__(self, rank: int, log: Log, on_message: OnMessage, on_output: OnOutput) -> None:
        self.rank = rank
        self.log = log
        self.pid: int | None = None
        self.run: str | None = None
        self.shown = False
        self.gates: dict[str, RateLimiter] = {}
        self.forming: int | None = None
        self.generation = 0
        self.began = 0
        self.names: dict[str, str] = {}
        self._on_message = on_message
        self._on_output = on_output
        self._taken: list[Message] = []
        self._pipes: dict[int, str] = {}
        self._link: Link | None = None
        self._side: socket.socket | None = None

    @contextlib.contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """Open sockets and pipes for a new process and give its ends of them, in order."""
        ours, commands = socket.socketpair()
        self._side, side = socket.socketpair()
        self._side.setblocking(False)
        self._link = Link(ours, self._receive, lambda: None)
        theirs = [commands.detach(), side.detach()]
        for stream in ("stdout", "stderr", "log"):
            read, write = os.pipe()
            os.set_blocking(read, False)
            asyncio.get_running_loop().add_reader(read, self._read, read)
            self._pipes[read] = stream
            theirs.append(write)
        try:
            yield theirs
        finally:
            for fd in theirs:
                os.close(fd)

    def send(self, message: Message) -> None:
        """Give the rank something to do."""
        if self._link:
            self._link.send(message)

    def take(self, groups: list[Message]) -> list[Message]:
        """Return the groups of names that are for this rank, and note that it has them."""
        mine = [group for group in groups if self.rank in group["ranks"]]
        for group in mine:
            self.names.update(group["digests"])
        self._taken = mine
        return mine

    def bound(self, arrived: list[str]) -> None:
        """Note which shipments of the run the rank came to bind; it does not have the others."""
        for group in self._taken:
            if group["shipment"] not in arrived:
                for key in group["digests"]:
                    self.names.pop(key, None)
        self._taken = []

    def break_collective(
        self,
        run: str | int,
        siblings: list[int],
        addresses: list[str],
        force: bool,
        store: tuple[str, int] | None = None,
    ) -> None:
        """Release the rank from a collective that it may be blocked in.

        Parameters
        ----------
        run
            The run that it should be in, or the generation of the group that it joins.
        siblings
            Process ids of the other ranks of this node.
        addresses
            Addresses of the other nodes.
        force
            Whether to do so even if it has heard of the interrupt, and may be cleaning up.
        store
            Where ranks meet that join a group.
        """
        self.tell(
            {
                "op": "break",
                "run": run,
                "siblings": siblings,
                "addresses": addresses,
                "force": force,
                "store": store,
            }
        )

    def tell(self, message: Message) -> None:
        """Tell the rank something that it hears whatever it is doing."""
        if self._side:
            with contextlib.suppress(OSError):
                self._side.send(encode(message))

    def signal(self, number: signal.Signals) -> None:
        """Signal the rank and the processes of its group."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def drain(self) -> None:
        """Read what the rank has written so far."""
        for fd in list(self._pipes):
            while self._read(fd):
                pass

    def close(self) -> None:
        """Let go of a process that has ended; what it wrote is read first."""
        self.drain()
        for fd in list(self._pipes):
            self._close_pipe(fd)
        if self._link:
            self._link.close()
        if self._side:
            self._side.close()
        self._link = self._side = None
        self.pid = self.run = None
        self.names = {}
        self.forming = None
        self.generation = 0

    def describe(self) -> dict[str, Any]:
        """Return what a client that comes anew should know."""
        return {
            "rank": self.rank,
            "pid": self.pid,
            "run": self.run,
            "generation": self.generation,
            "names": self.names,
        }

    def _receive(self, message: Message, payload: memoryview) -> None:
        # What was printed before the rank said something comes before it.
        self.drain()
        self._on_message(self, message)

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, _READ)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self._close_pipe(fd)
            return False
        offset = self.log.append(data)
        self._on_output(self, self._pipes[fd], data, offset)
        return True

    def _close_pipe(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        del self._pipes[fd]
        os.close(fd)
