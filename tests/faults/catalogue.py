"""What can break, as data: how it is done, what the user is told, and how soon.

The tests hold what is said, and that nothing is left behind; the benchmarks take the times.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from jupyter_sky.providers.local import Local
from tests.cluster.conftest import Cells, start
from tests.faults import limits
from tests.faults.parts import agent_of, blobs_of, folder_of, fork_server_of, until

RANKS = 4
VICTIM = 2

SET_UP = "import os, time, torch, torch.distributed as dist\nkept = dist.get_rank()"
PROOF = (
    "import torch, torch.distributed as dist\nones = torch.ones(1)\ndist.all_reduce(ones)\n"
    "assert ones.item() == dist.get_world_size()"
)

_INSIDE = "print('inside', flush=True)\n"
_COMPUTING = f"{_INSIDE}while True: pass"

Strike = Callable[[Cells, ExitStack], None]
"""Breaks something of a cluster; what is mended before the next cell goes onto the stack."""


def _nothing(cells: Cells, mended: ExitStack) -> None:
    """Need no preparation."""


def with_torch() -> Cells:
    """Start a cluster whose ranks are in a process group of torch."""
    return start(nodes=RANKS, stop=5.0)


def without() -> Cells:
    """Start a cluster without a framework, which comes up at once."""
    return start(nodes=RANKS, framework=False, stop=5.0)


def replacing() -> Cells:
    """Start a cluster of two agents in which others take the place of those that are lost."""
    return start(nodes=2, provider=Local(machines=2), replace=True, framework=False, stop=5.0)


@dataclass(frozen=True)
class Fault:
    """Something that breaks.

    Attributes
    ----------
    what
        What breaks, in words.
    strike
        Breaks it.
    said
        What the user is told then, as a regular expression.
    make
        Starts the cluster. Faults that leave a cluster whole can have the same one.
    prepare
        What happens before, which is not part of the time.
    during
        The cell that runs meanwhile, and prints "inside" when it is time; with none nothing runs.
    ranks
        The ranks that run it.
    names, values
        What it is sent, and what is asked for afterwards.
    ends
        Whether the cluster is lost, so that a new one has to be started.
    lost
        The ranks whose variables are lost.
    known, usable
        Seconds to reach, until the user is told and until the next cell has run.
    """

    what: str
    strike: Strike
    said: str
    make: Callable[[], Cells] = with_torch
    prepare: Strike = _nothing
    during: str = ""
    ranks: tuple[int, ...] = tuple(range(RANKS))
    names: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    ends: bool = False
    lost: tuple[int, ...] = (VICTIM,)
    known: float = 1.0
    usable: float = 3.0

    @property
    def name(self) -> str:
        """What tests call it."""
        return re.sub(r"\W+", "-", self.what)


# How things are broken


def _pid(cells: Cells, rank: int = VICTIM) -> int:
    pid = cells.cluster.state.ranks[rank].pid
    assert pid
    return pid


def _kill_rank(cells: Cells, mended: ExitStack) -> None:
    os.kill(_pid(cells), signal.SIGKILL)


def _note_where_ranks_write(cells: Cells, mended: ExitStack) -> None:
    cells.namespace |= {"parts": str(blobs_of(cells)), "pid": _pid(cells)}


_KILLED_WHEN_IT_SENDS = """
import signal, threading

def watch():
    # In the rank itself: whatever pauses this pauses the writing too.
    while not any(name.startswith(f"{os.getpid()}-") for name in os.listdir(parts)):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

large = os.urandom(400_000_000)
threading.Thread(target=watch, daemon=True).start()
"""


def _rank_that_sends_is_killed(cells: Cells, mended: ExitStack) -> None:
    """Wait until it has killed itself: another process may have its place by now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(cells.namespace["pid"]).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)


def _break_group(cells: Cells, mended: ExitStack) -> None:
    """Kill another rank, so that the next cell has the group formed anew."""
    before = _pid(cells, 1)
    os.kill(before, signal.SIGKILL)
    until(cells, lambda: cells.cluster.state.ranks[1].pid not in (None, before))
    until(cells, lambda: cells.cluster.state.settled)


def _kill_rank_that_forms(cells: Cells, mended: ExitStack) -> None:
    # Somewhere in the middle of it: which moment that is, is chance.
    timer = threading.Timer(random.uniform(0, 0.08), os.kill, (_pid(cells), signal.SIGKILL))
    mended.callback(timer.join)
    timer.start()


def _kill_agent(cells: Cells, mended: ExitStack) -> None:
    agent_of(cells).kill()


def _kill_second_agent(cells: Cells, mended: ExitStack) -> None:
    agent_of(cells, 1).kill()


def _kill_fork_server(cells: Cells, mended: ExitStack) -> None:
    fork_server_of(cells).kill()


def _kill_second_fork_server(cells: Cells, mended: ExitStack) -> None:
    fork_server_of(cells, 1).kill()


def _freeze_rank_and_stop(cells: Cells, mended: ExitStack) -> None:
    os.kill(_pid(cells), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGINT)


def _freeze_agent(cells: Cells, mended: ExitStack) -> None:
    agent = agent_of(cells)
    agent.suspend()
    mended.callback(agent.resume)


def _fill_shared_memory(cells: Cells, mended: ExitStack) -> None:
    cells.namespace["data"] = os.urandom(20_000_000)
    for writer in (agent_of(cells), psutil.Process()):  # the notebook writes there itself, too
        mended.enter_context(limits.full_disk(writer, 1_000_000))


def _fill_disk(cells: Cells, mended: ExitStack) -> None:
    mended.enter_context(limits.full_disk(agent_of(cells), 4096))


def _no_descriptors(cells: Cells, mended: ExitStack) -> None:
    mended.enter_context(limits.descriptors(agent_of(cells), 3))
    _kill_rank(cells, mended)


def _no_process(cells: Cells, mended: ExitStack) -> None:
    mended.enter_context(limits.no_more_processes(fork_server_of(cells)))
    _kill_rank(cells, mended)


def _note_sign(cells: Cells, mended: ExitStack) -> None:
    folder = mended.enter_context(tempfile.TemporaryDirectory(prefix="sky-"))
    cells.namespace["sign"] = f"{folder}/sign"


def _little_memory(cells: Cells, mended: ExitStack) -> None:
    mended.enter_context(limits.memory(psutil.Process(_pid(cells)), 300_000_000))
    Path(cells.namespace["sign"]).touch()


def _no_frames(cells: Cells, mended: ExitStack) -> None:
    """Send an agent what is no frame, frames that are too large, and messages that say nothing."""
    huge = b"\xff" * 12
    for data in (b"GET / HTTP/1.1\r\n\r\n", huge, b"\0\0\0\1" + b"\0" * 8 + b"\xc1"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(folder_of(cells) / "agent.sock"))
            sock.sendall(data)


_LOST = r"RankLost: rank 2 is lost: it was killed by SIGKILL"

FAULTS = (
    Fault("kill -9 of a rank, idle", _kill_rank, "it was killed by SIGKILL"),
    Fault("kill -9 of a rank, computing", _kill_rank, _LOST, during=_COMPUTING),
    Fault(
        "kill -9 of a rank, in a collective",
        _kill_rank,
        _LOST,
        during=(
            f"{_INSIDE}if dist.get_rank() == 0: time.sleep(600)\ndist.all_reduce(torch.ones(1))"
        ),
    ),
    Fault(
        "kill -9 of a rank, sending results",
        _rank_that_sends_is_killed,
        _LOST,
        prepare=_note_where_ranks_write,
        during=f"{_KILLED_WHEN_IT_SENDS}{_INSIDE}",
        ranks=(VICTIM,),
        names=("parts",),
        values=("large",),
    ),
    Fault(
        "kill -9 of a rank while the group forms",
        _kill_rank_that_forms,
        r"rank 2 could not join the group: RankLost|rank 2 is lost|nothing",
        prepare=_break_group,
        during="pass",
        lost=(1, VICTIM),
    ),
    Fault(
        "SIGSTOP of a rank, then Stop: control back",
        _freeze_rank_and_stop,
        r"Interrupted: ranks 0-3 stopped after .* rank 2 did not react yet",
        during=_COMPUTING,
        usable=8.0,  # five seconds are what a rank gets to save what it has
    ),
    Fault(
        "no memory for a rank",
        _little_memory,
        "the system killed it because there was no memory left",
        prepare=_note_sign,
        during=(
            f"{_INSIDE}while not os.path.exists(sign): time.sleep(0.01)\n"
            "if kept == 2: big = b'x' * 10**9\ntime.sleep(600)"
        ),
        names=("sign",),
        known=1.5,
    ),
    Fault(
        "no descriptor for a new rank",
        _no_descriptors,
        "killed by SIGKILL|the system could not start its process .Too many open files",
    ),
    Fault(
        "no process for a new rank",
        _no_process,
        "killed by SIGKILL|the system could not start its process .Resource temporarily unavail",
    ),
    Fault(
        "full shared memory",
        _fill_shared_memory,
        "a node has no room for them in shared memory",
        during="len(data)",
        names=("data",),
        lost=(),
    ),
    Fault(
        "full disk, under a cell that prints and displays",
        _fill_disk,
        "nothing",
        during=(
            f"{_INSIDE}for n in range(100): print(n, 'x' * 1000)\n"
            "from IPython.display import display\n"
            "for n in range(20): display({'image/png': bytes(100_000)}, raw=True)"
        ),
        lost=(),
    ),
    Fault(
        "bytes that are no frames, sent to an agent",
        _no_frames,
        "nothing",
        during=_INSIDE,
        lost=(),
    ),
    Fault(
        "SIGSTOP of an agent",
        _freeze_agent,
        "no connection to",
        make=without,
        known=15.0,
        usable=18.0,
        lost=(),
    ),
    Fault(
        "kill -9 of an agent, idle", _kill_agent, "the agent of ranks 0-3 ended", without, ends=True
    ),
    Fault(
        "kill -9 of an agent, computing",
        _kill_agent,
        "ClusterLost: .*the agent of ranks 0-3 ended",
        without,
        during=_COMPUTING,
        ends=True,
    ),
    Fault(
        "kill -9 of an agent with --replace, computing",
        _kill_second_agent,
        "RankLost: rank 1 is lost: the agent of node 1 ended",
        replacing,
        during=_COMPUTING,
        ranks=(1,),
        lost=(1,),
    ),
    Fault(
        "kill -9 of a fork server, computing",
        _kill_fork_server,
        "ClusterLost: .*the agent of ranks 0-3 ended",
        without,
        during=_COMPUTING,
        ends=True,
    ),
    Fault(
        "kill -9 of a fork server with --replace, computing",
        _kill_second_fork_server,
        "RankLost: rank 1 is lost: the agent of node 1 ended",
        replacing,
        during=_COMPUTING,
        ranks=(1,),
        lost=(1,),
    ),
)
