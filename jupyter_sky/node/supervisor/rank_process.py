"""A rank as its agent sees it: a process, its streams, its log, and what it is doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from jupyter_sky.node.supervisor.output.display_limiter import DisplayLimiter
from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.output.rate_limiter import RateLimiter
from jupyter_sky.transport.frames import Message, SharedFields, encode
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.protocol.calls import TellRequest
from jupyter_sky.transport.protocol.messages import (
    FormRequest,
    NameGroup,
    RankStatus,
    RunRequest,
    said,
)
from jupyter_sky.transport.protocol.rank_messages import (
    Displayed,
    FormCommand,
    Peers,
    RankCommand,
    SideCommand,
    TellCommand,
)
from jupyter_sky.transport.rank_ranges import count, includes
from jupyter_sky.transport.streams import FIRST_PLACE, LineJoiner, MarkReader, Piece

_READ = 256 * 1024
_ROUNDS = 4  # of reading that, in which all is read that pipes can hold at a time
_TAILS = 128 * 1024  # bytes of output that the ranks of a run send at its end, together
_LARGEST_TAIL = 4096
_SMALLEST_TAIL = 256

_OWN = frozenset({"names", "values", "asked", "gpus"})
"""What each rank is told of its own about a run (`transport.protocol.rank_messages.RunCommand`)."""

OnOutput = Callable[["RankProcess", str, bytes, int | None, int], None]
"""Takes a rank, its stream, what it printed, where its log has it, if it does, and whose it is."""

OnMessage = Callable[["RankProcess", Message], None]


class RankProcess:
    """One rank of this node.

    Parameters
    ----------
    rank
        Its number in the group.
    log
        Where all that it prints is written.
    on_message
        Called for each message of the rank.
    on_output
        Called for what it prints, after that is in the log.

    Attributes
    ----------
    pid
        Its process id, also that of its process group; ``None`` until it is forked.
    run
        The run that it is busy with, if any.
    ended
        The run that it has come to the end of last, if any.
    is_ending
        Whether it was told to end, to be started anew.
    run_began
        When it was told of its latest run, as the loop counts.
    run_offset
        Where in its log the run that it did last begins.
    tail_limit
        Bytes of its output that the clients get at the end of a run in which it is not shown.
    runs_script
        Whether that run is a script, in a process of its own.
    limiters
        For each stream of this run that goes to the clients, and for a call of it (0: for all of
        it), what limits how much of it does.
    displays
        The same for what it displays; ``None`` if that does not go to the clients.
    forming
        The generation of the process group that it is about to join, if any.
    generation
        The process group that it joined last.
    names
        The content digest of each name that it was sent last.
    stacks
        The file to which it writes its stacks on a signal; see `node.rank.inspection.stacks`.
    """

    def __init__(self, rank: int, log: LogFile, on_message: OnMessage, on_output: OnOutput) -> None:
        self.rank = rank
        self.log = log
        self.pid: int | None = None
        self.run: str | None = None
        self.ended: str | None = None
        self.is_ending = False
        self.run_began = 0.0
        self.run_offset = 0
        self.tail_limit = 0
        self.runs_script = False
        self.limiters: dict[tuple[str, int], RateLimiter] = {}
        self.displays: DisplayLimiter | None = None
        self.forming: int | None = None
        self.generation = 0
        self.names: dict[str, str] = {}
        self._on_message = on_message
        self._on_output = on_output
        self._unconfirmed: list[NameGroup] = []
        self._pipes: dict[int, str] = {}
        self._poll = select.poll()
        self._marks: dict[int, MarkReader] = {}
        self._held: list[tuple[str, Piece]] = []
        self._place = FIRST_PLACE
        self._joiner = LineJoiner()
        self._link: Link | None = None
        self._side: socket.socket | None = None
        self.stacks: int | None = None

    # Its life

    @contextlib.contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """Open sockets and pipes for a new process and give its ends of them, in order."""
        theirs: list[int] = []
        try:
            self._open(theirs)
            yield theirs
        except BaseException:
            self.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _open(self, theirs: list[int]) -> None:
        ours, commands = socket.socketpair()
        theirs.append(commands.detach())
        self._link = Link(ours, self._receive, lambda: None)
        self._side, side = socket.socketpair()
        theirs.append(side.detach())
        self._side.setblocking(False)
        for stream in ("stdout", "stderr", "log"):
            read, write = os.pipe()
            theirs.append(write)
            os.set_blocking(read, False)
            asyncio.get_running_loop().add_reader(read, self._on_readable)
            self._pipes[read], self._marks[read] = stream, MarkReader()
            self._poll.register(read, select.POLLIN)
        self.stacks = os.memfd_create("sky-stacks")
        theirs.append(os.dup(self.stacks))

    def signal(self, number: signal.Signals) -> None:
        """Signal the rank and the processes of its group."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def end(self, within: float) -> None:
        """End the process: at once where it is busy, else when it has left its plugins.

        Parameters
        ----------
        within
            Seconds that it gets for that before it is killed; 0 to kill it at once.
        """
        if self.pid is None:  # it is new when it comes
            return
        if self.run or self.forming is not None or not within:
            self.signal(signal.SIGKILL)
            return
        self.is_ending = True
        self.send({"op": "end"})
        asyncio.get_running_loop().call_later(within, self._kill, self.pid)

    def _kill(self, pid: int | None) -> None:
        if self.pid == pid:
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close what led to a process that has ended; what it wrote is read first."""
        self.drain()
        for fd in list(self._pipes):
            self._close_pipe(fd)
        self._held, self._place = [], FIRST_PLACE
        if self.stacks is not None:
            os.close(self.stacks)
        self.stacks = None
        if self._link:
            self._link.close()
        if self._side:
            self._side.close()
        self._link = self._side = None
        self.pid = self.run = self.ended = None
        self.is_ending = False
        self.names = {}
        self.forming = None
        self.generation = 0

    def status(self) -> RankStatus:
        """Return what a client that has just connected should know."""
        return {
            "rank": self.rank,
            "pid": self.pid,
            "run": self.run,
            "generation": self.generation,
            "names": self.names,
        }

    # What it is told

    def send_run(self, request: RunRequest, shared: SharedFields, gpus: str | None) -> None:
        """Let the rank carry out its part of a run.

        Parameters
        ----------
        request
            The run.
        shared
            What is the same of it for all ranks, as `shared_fields` returns it.
        gpus
            Those of its node.
        """
        self.run = request["run"]
        self.run_began = asyncio.get_running_loop().time()
        self.run_offset = self.log.size
        self.log.index.begin_run(self.run, request["title"], self.log.size)
        is_shown = includes(request["show"], self.rank)
        streams = ("stdout", "stderr") if is_shown else ()
        is_program = request["program"] is not None
        self.limiters = {(each, 0): RateLimiter(for_program=is_program) for each in streams}
        self.displays = DisplayLimiter() if is_shown else None
        self.runs_script = request["script"] is not None
        self.tail_limit = 0 if is_shown else _tail_limit(count(request["everyone"]))
        values = request["values"]
        mine: dict[str, Any] = {
            "names": self._names_for_it(request["names"]),
            "values": values.get(self.rank, []),
            "asked": list(dict.fromkeys(name for rank in sorted(values) for name in values[rank])),
            "gpus": gpus,
        }
        if self._link:
            self._link.send_encoded(shared.encode(said(mine)))

    def send_tell(self, request: TellRequest) -> None:
        """Tell the rank something in the middle of its run."""
        if request["kind"] == "cancel":  # its main thread may be busy with that call
            run, number = request["run"], request["number"]
            self.send_aside({"op": "cancel", "run": run, "number": number})
            return
        names = [group for group in request["names"] if self.rank in group["ranks"]]
        for group in names:
            self.names.update(group["digests"])
        self.send(cast(TellCommand, {**request, "op": "tell", "names": names}))

    def run_output(self, limit: int) -> bytes:
        """Return the end of what the rank printed in its last run, at most ``limit`` bytes."""
        start = max(self.run_offset, self.log.size - limit)
        return self.log.read(start, self.log.size - start)

    def send_form(self, request: FormRequest, peers: Peers) -> None:
        """Let the rank enter a process group."""
        self.forming = request["topology"]["generation"]
        names = self._names_for_it(request["names"])
        command = {**request, **peers, "op": "form", "ranks": [self.rank], "names": names}
        self.send(cast(FormCommand, command))

    def send(self, command: RankCommand | Displayed) -> None:
        """Tell the rank's main thread what to do after all that it was told before."""
        if self._link:
            self._link.send(command)

    def send_aside(self, command: SideCommand) -> None:
        """Tell the rank's side thread something, which listens whatever the rank is doing."""
        if self._side:
            with contextlib.suppress(OSError):
                self._side.send(encode(command))

    def _names_for_it(self, groups: Sequence[NameGroup]) -> list[NameGroup]:
        """Return the groups of names that are for this rank, and remember that it gets them."""
        mine = [group for group in groups if self.rank in group["ranks"]]
        for group in mine:
            self.names.update(group["digests"])
        self._unconfirmed = mine
        return mine

    # What it says

    def confirm_names(self, arrived: Sequence[str]) -> None:
        """Forget the names that the rank did not come to bind.

        Parameters
        ----------
        arrived
            The shipments of the run that it did bind.
        """
        for group in self._unconfirmed:
            if group["shipment"] not in arrived:
                for key in group["digests"]:
                    self.names.pop(key, None)
        self._unconfirmed = []

    def drain(self) -> None:
        """Read all that was written until nobody writes any more."""
        while self._read_what_is_there():
            pass

    def _read_what_is_there(self) -> bool:
        # Asked of all pipes at once: mostly there is nothing.
        return bool(self._held or self._poll.poll(0)) and self._read_all()

    def _receive(self, message: Message, payload: memoryview) -> None:
        # What was printed before the rank said something comes before it. That is in the pipes, and
        # read in a few rounds; others of its group may write for ever.
        for _ in range(_ROUNDS):
            if not self._read_what_is_there():
                break
        else:
            self._read_held_soon()
        self._on_message(self, message)

    def _on_readable(self) -> None:
        self._read_all()
        self._read_held_soon()

    def _read_held_soon(self) -> None:
        if self._held:
            # What has to come before it is on its way, or nothing is.
            asyncio.get_running_loop().call_soon(self._on_readable)

    def _read_all(self) -> bool:
        """Read each pipe once and pass on what is in order; return whether there was anything."""
        # What was written before a place that was known already, has been read by now.
        known = self._place
        found = [self._read(fd) for fd in list(self._pipes)]
        held = sorted(self._held, key=lambda entry: entry[1].place)
        self._held = [entry for entry in held if any(found) and entry[1].place > known]
        for stream, piece in held:
            if piece.place <= known or not any(found):
                self._pass_on(stream, piece)
        return any(found)

    def _read(self, fd: int) -> bool:
        """Read a pipe into what is held, each piece with its place."""
        try:
            data = os.read(fd, _READ)
        except (BlockingIOError, InterruptedError):
            return False
        stream, reader = self._pipes[fd], self._marks[fd]
        if not data:
            if (rest := reader.end()).data:
                self._held.append((stream, rest._replace(place=self._place)))
            self._close_pipe(fd)
            return False
        for piece in reader.split(data):
            place = max(piece.place, self._place | 1) if piece.place % 2 else piece.place
            self._place = max(self._place, place)
            if piece.data:
                self._held.append((stream, piece._replace(place=place)))
        return True

    def _pass_on(self, stream: str, piece: Piece) -> None:
        if gap := self._joiner.between((stream, piece.call), piece.data):
            self.log.append(gap)
        offset = self.log.append(piece.data)
        self.log.index.add(stream, offset)
        self._on_output(self, stream, piece.data, offset, piece.call)

    def _close_pipe(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        self._poll.unregister(fd)
        del self._pipes[fd], self._marks[fd]
        os.close(fd)


def shared_fields(request: RunRequest) -> SharedFields:
    """Return what all ranks of a node are told of a run."""
    fields = {name: value for name, value in request.items() if name not in _OWN}
    return SharedFields({**said(fields), "op": "run"})


def _tail_limit(ranks: int) -> int:
    return max(_SMALLEST_TAIL, min(_LARGEST_TAIL, _TAILS // max(1, ranks)))
