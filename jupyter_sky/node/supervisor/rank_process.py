"""A rank from the agent's perspective: its process, streams, log, and activity."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, cast

from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.output.pipes import OutputPipes
from jupyter_sky.node.supervisor.output.shown_output import ShownOutput
from jupyter_sky.node.supervisor.waiting import Waiting
from jupyter_sky.transport.frames import Message, SharedFields, encode
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.protocol.calls import TellRequest
from jupyter_sky.transport.protocol.messages import (
    NameGroup,
    RankStatus,
    RunFields,
    RunRequest,
    compact,
)
from jupyter_sky.transport.protocol.rank_messages import (
    Displayed,
    FormCommand,
    Peers,
    RankCommand,
    SideCommand,
    TellCommand,
)
from jupyter_sky.transport.protocol.topology import FormRequest
from jupyter_sky.transport.rank_ranges import count, includes

_TAILS = 128 * 1024  # total bytes of output that the ranks of a run send at its end
_LARGEST_TAIL = 4096
_SMALLEST_TAIL = 256

_SHARED = RunFields.__annotations__.keys() - {"names"}
"""What of a run all ranks of a node are told alike."""

OnOutput = Callable[["RankProcess", str, bytes, int | None, int], None]
"""Takes a rank, its stream, what it printed, where its log has it, if it does, and whose it is."""

OnMessage = Callable[["RankProcess", Message], None]


class RankRun(NamedTuple):
    """A rank's part of a run; the defaults are those of a rank that has had none.

    Attributes
    ----------
    waiting
        Whether it waits for its notebook.
    began
        When the rank was told of it, by the loop's clock.
    offset
        The offset in the rank's log at which it begins.
    is_script
        Whether it is a script, which has a process of its own.
    output
        What is shown of its output; ``None`` if it is not shown live.
    tail_limit
        Bytes of output for clients at its end where it is not shown.
    """

    waiting: Waiting
    began: float = 0.0
    offset: int = 0
    is_script: bool = False
    output: ShownOutput | None = None
    tail_limit: int = 0


class RankProcess:
    """One rank of this node.

    Parameters
    ----------
    rank
        Its number in the group.
    log
        Its log.
    on_message
        Called for each message of the rank.
    on_output
        Called for its output, after it was written to the log.

    Attributes
    ----------
    pid
        Its process id and process group; ``None`` until it is forked.
    offset
        The offset in its log at which its process has begun, or the last run of that process.
    run
        The run that it is executing, if any.
    latest
        Its part of that run, or of its last one, which a former process may have had.
    ended
        The run that it has come to the end of last, if any.
    is_ending
        Whether it was told to end, to be started anew.
    given_up
        Why its last process ended or did not start, if no other is started for it.
    ignored_stop
        The seconds within which it did not react to a stop, and was killed; 0 if it was not.
    formations
        The generations of the process groups that it was told to join and has not answered. There
        are several where it takes long to leave the group before them.
    generation
        The generation of the process group that it is in; 0 for none, as when it has failed to
        enter one or left its group to end a run.
    group_size
        How many ranks the last group has that it was to join.
    names
        For each name, the content digest of the value that it was sent last.
    on_hung_up
        Called when its link is closed, by its end or by ours.
    stacks
        The file to which it writes its stacks on a signal; see `node.rank.inspection.stacks`.
    """

    def __init__(self, rank: int, log: LogFile, on_message: OnMessage, on_output: OnOutput) -> None:
        self.rank = rank
        self.log = log
        self.pid: int | None = None
        self.offset = 0
        self.run: str | None = None
        self.latest = RankRun(Waiting())
        self.ended: str | None = None
        self.given_up: str | None = None
        self.is_ending = False
        self.ignored_stop = 0.0
        self.formations: list[int] = []
        self.generation = self.group_size = 0
        self.names: dict[str, str] = {}
        self.on_hung_up: Callable[[RankProcess], None] = lambda process: None
        self._on_message = on_message
        self._unconfirmed: dict[str, Collection[str]] = {}  # by shipment: the keys of its names
        self._output = OutputPipes(log, partial(on_output, self))
        self._link: Link | None = None
        self._side: socket.socket | None = None
        self.stacks: int | None = None

    @property
    def runs_script(self) -> bool:
        """Whether it is executing a script."""
        return self.run is not None and self.latest.is_script

    # Life cycle

    @contextlib.contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """Open sockets and pipes for a new process; provide its ends of them, in order."""
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
        self._link = Link(ours, self._receive, lambda: self.on_hung_up(self))
        self._side, side = socket.socketpair()
        theirs.append(side.detach())
        self._side.setblocking(False)
        self._output.open(theirs)
        self.stacks = os.memfd_create("sky-stacks")
        theirs.append(os.dup(self.stacks))
        self.offset = self.log.size
        self.given_up = None

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
        self.is_ending = True
        if self.run or self.formations or not within:
            self.signal(signal.SIGKILL)
            return
        self.send({"op": "end"})
        asyncio.get_running_loop().call_later(within, self._kill, self.pid)

    def _kill(self, pid: int | None) -> None:
        if self.pid == pid:
            self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the sockets and pipes of an ended process, after reading its output."""
        self._output.close()
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
        self.ignored_stop = 0.0
        self.names = {}
        self.formations = []
        self.generation = self.group_size = 0

    def status(self) -> RankStatus:
        """Return what a newly connected client should know."""
        return {
            "rank": self.rank,
            "pid": None if self.is_ending else self.pid,
            "run": self.run,
            "forming": self.formations[-1] if self.formations else None,
            "generation": self.generation,
            "group_size": self.group_size,
            "names": self.names,
            "given_up": self.given_up,
        }

    # Messages to the rank

    def send_run(self, request: RunRequest, shared: SharedFields, gpus: str | None) -> None:
        """Let the rank carry out its part of a run.

        Parameters
        ----------
        request
            The run.
        shared
            The fields common to all ranks, from `shared_fields`.
        gpus
            The GPUs of its node.
        """
        self.log.end_line()
        self.log.index.begin_run(request["run"], request["title"], self.log.size)
        is_shown = includes(request["show"], self.rank)
        self.run, self.offset = request["run"], self.log.size
        self.latest = RankRun(
            waiting=Waiting(request),
            began=asyncio.get_running_loop().time(),
            offset=self.offset,
            is_script=request["script"] is not None,
            output=ShownOutput(request["program"] is not None) if is_shown else None,
            tail_limit=0 if is_shown else _tail_limit(count(request["everyone"])),
        )
        self._unconfirmed = {}
        own: dict[str, Any] = {
            "names": self._names_for_it(request["names"]),
            "wanted": request["values"].get(self.rank, []),
            "gpus": gpus,
        }
        if self._link:
            self._link.send_encoded(shared.encode(compact(own)))

    def send_tell(self, request: TellRequest) -> None:
        """Send the rank a message in the middle of its run."""
        self.latest.waiting.on_tell(request)
        if request["kind"] == "cancel":  # its main thread may be executing that call
            run, number = request["run"], request["number"]
            self.send_aside({"op": "cancel", "run": run, "number": number})
            return
        names = self._names_for_it(request["names"])
        self.send(cast(TellCommand, {**request, "op": "tell", "names": names}))

    def run_output(self, limit: int) -> bytes:
        """Return the end of the rank's output in its last run, at most ``limit`` bytes."""
        start = max(self.latest.offset, self.log.size - limit)
        return self.log.read(start, self.log.size - start)

    def tail(self) -> bytes:
        """Return the end of what a terminal would show of its run, unless that was shown live."""
        limit = self.latest.tail_limit
        return self.log.shown(self.latest.offset, limit) if limit else b""

    def send_form(self, request: FormRequest, peers: Peers) -> None:
        """Let the rank enter a process group."""
        topology = request["topology"]
        self.formations.append(topology["generation"])
        self.group_size = sum(len(node["ranks"]) for node in topology["nodes"])
        names = self._names_for_it(request["names"])
        command = {**request, **peers, "op": "form", "ranks": [self.rank], "names": names}
        self.send(cast(FormCommand, command))

    def send(self, command: RankCommand | Displayed) -> None:
        """Send a command to the rank's main thread, which runs after all earlier ones."""
        if self._link:
            self._link.send(command)

    def send_aside(self, command: SideCommand) -> None:
        """Send a message to the rank's side thread, which listens whatever the rank is doing."""
        if self._side:
            with contextlib.suppress(OSError):
                self._side.send(encode(command))

    def _names_for_it(self, groups: Sequence[NameGroup]) -> list[NameGroup]:
        """Return the groups of names for this rank, and remember that it gets them."""
        mine = [group for group in groups if self.rank in group["ranks"]]
        for group in mine:
            self.names.update(group["digests"])
            self._unconfirmed[group["shipment"]] = group["digests"].keys()
        return mine

    # Messages from the rank

    def confirm_names(self, arrived: Sequence[str] | None) -> None:
        """Forget names that the rank did not bind: those of the run's shipments but ``arrived``."""
        if arrived is None:
            return
        lost: set[str] = set()
        for shipment, keys in self._unconfirmed.items():
            lost = lost.difference(keys) if shipment in arrived else lost.union(keys)
        for key in lost:
            self.names.pop(key, None)
        self._unconfirmed = {}

    def drain(self) -> None:
        """Read everything that it has printed so far."""
        self._output.drain()

    def _receive(self, message: Message, payload: memoryview) -> None:
        self.drain()  # what was printed before a message comes before it
        self._on_message(self, message)


def shared_fields(request: RunRequest) -> SharedFields:
    """Return the fields of a run that are common to all ranks of a node."""
    fields = {name: value for name, value in request.items() if name in _SHARED}
    values = request["values"]
    times = Counter(name for rank in sorted(values) for name in values[rank])
    asked = {"asked": [*times], "of_one": [name for name in times if times[name] == 1]}
    return SharedFields({**compact({**fields, **asked}), "op": "run"})


@cache
def _tail_limit(ranks: int) -> int:
    return max(_SMALLEST_TAIL, min(_LARGEST_TAIL, _TAILS // max(1, ranks)))
