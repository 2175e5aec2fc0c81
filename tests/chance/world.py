"""A cluster with its notebook, its model, and a record of every run: what a step acts on."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.events import Output
from tests.chance.model import NAMES, Model, Statement
from tests.cluster.conftest import Cells
from tests.cluster.namespace.notebook import Notebook
from tests.faults.parts import until
from tests.waiting import PATIENCE

STOP = 5.0
"""Seconds from Stop until a rank that does not react is ended."""

_PROOF = """
import torch, torch.distributed as dist
_ones = torch.ones(1)
dist.all_reduce(_ones)
_sum = int(_ones.item())
"""
_SETTLED_WITHIN = PATIENCE


@dataclass(frozen=True)
class Shape:
    """What kind of cluster it is.

    Attributes
    ----------
    nodes
        How many it has at first.
    agents
        How many agents those share; another takes the place of one that is lost, if it has several.
    framework
        Whether its ranks form a process group of torch.
    """

    nodes: int
    agents: int = 1
    framework: bool = False


@dataclass
class Job:
    """A cell on its way, and what is to come of it.

    Attributes
    ----------
    tag
        What each of its lines begins with.
    lines
        How many each rank prints.
    ranks
        Those that run it; the cell shows all of them.
    go
        A file: the cell waits for it at its end, if it has one.
    texts
        What came of each rank.
    handle
        The run.
    """

    tag: str
    lines: int
    ranks: tuple[int, ...]
    go: Path | None = None
    texts: dict[int, str] = field(default_factory=dict)
    handle: RunHandle | None = None

    def code(self, statements: Sequence[Statement]) -> str:
        """Return the cell: its statements, lines on both streams, and waiting."""
        lines = [each.code for each in statements]
        if self.lines:
            lines += [
                "import sys as _sys",
                f"for _n in range({self.lines}):",
                f"    print(f'{self.tag} {{_n}}', file=(_sys.stdout, _sys.stderr)[_n % 3 == 2])",
            ]
        if self.go:
            lines += [
                "import os as _os, time as _time",
                f"print('{self.tag} inside', flush=True)",
                f"while not _os.path.exists('{self.go}'): _time.sleep(0.005)",
            ]
        return "\n".join(lines) or "pass"

    def show(self, event: object) -> None:
        """Keep what a rank has printed."""
        if isinstance(event, Output):
            assert event.rank in self.ranks, f"{self.tag}: output of rank {event.rank}"
            self.texts[event.rank] = self.texts.get(event.rank, "") + event.data.decode()

    def drain(self, ends: int = 1) -> None:
        """Take what is left of a run that is over, and its end if nobody has heard of that."""
        assert self.handle
        assert self.handle.finished, f"{self.tag} has not ended"
        left = self.handle._run.queue
        while not left.empty():
            event = left.get_nowait()
            ends -= event is None
            self.show(event)
        assert ends >= 0, f"{self.tag} has ended more than once"

    @property
    def inside(self) -> bool:
        """Whether every rank waits for the file."""
        return all(f"{self.tag} inside\n" in self.texts.get(rank, "") for rank in self.ranks)

    def check_lines(self, whole: Sequence[int] = (), gap: bool = False) -> None:
        """Check that each line came once and in order, and all of them of some ranks.

        Parameters
        ----------
        whole
            The ranks that came to their end.
        gap
            Whether lines may be missing: Ctrl-C can come when they are about to be shown.
        """
        expected = "".join(f"{self.tag} {number}\n" for number in range(self.lines))
        expected += f"{self.tag} inside\n" if self.go else ""
        for rank, text in self.texts.items():
            # A rank that is stopped says so behind its lines.
            there = [line for line in text.splitlines(keepends=True) if line.startswith(self.tag)]
            in_order = [line for line in expected.splitlines(keepends=True) if line in there]
            fits = there == in_order if gap else expected.startswith("".join(there))
            assert fits, f"rank {rank} printed {_apart(text, expected)}"
        for rank in whole:
            text = self.texts.get(rank, "")
            assert text == expected, f"rank {rank} printed {_apart(text, expected)}"


class World:
    """A cluster, its notebook, and the model of both.

    Attributes
    ----------
    cluster, notebook
        What is tried.
    model
        What they should hold.
    jobs
        Every cell that was started on this cluster.
    hosts
        The hosts that its nodes can be on; none if they are local.
    """

    hosts: tuple[str, ...] = ()

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.folder = Path(tempfile.mkdtemp(prefix="sky-chance-"))
        self.jobs: list[Job] = []
        self._numbers = 0
        self._provider = self._nodes_come_from()
        self.start()

    def _nodes_come_from(self) -> Provider:
        return Local(machines=self.shape.agents)

    def start(self) -> None:
        """Start the cluster, with an empty notebook."""
        name = f"chance-{uuid.uuid4().hex[:8]}"
        # Where nobody takes the place of a node, one that is slow to come back is waited for.
        more: dict[str, Any] = {"replace": True} if self.shape.agents > 1 else {"patience": 120.0}
        spec = ClusterSpec(name=name, nodes=self.shape.nodes, **more)
        made, runtime_env = assemble(spec, self._plugins)
        timeouts = Timeouts(stop=STOP)
        self.cluster = Cluster.start(made, self._provider, runtime_env, timeouts=timeouts)
        self.notebook = Notebook(self.cluster)
        self.model = Model()
        self.model.resize(self.shape.nodes)

    def attach(self) -> Cluster:
        """Take up the cluster as another kernel does."""
        row = registry.find(self.cluster.name)
        assert row is not None
        _, runtime_env = assemble(ClusterSpec(name=row.name), self._plugins)
        timeouts = Timeouts(stop=STOP)
        cluster = Cluster.attach(row, self._provider, runtime_env, timeouts=timeouts)
        assert cluster is not None
        return cluster

    def change_kernel(self) -> None:
        """Close the notebook, and open an empty one on the same cluster."""
        self.cluster.close(SkyError("the notebook was closed"))
        for job in self.jobs:
            if job.handle:
                job.drain()
        self.jobs.clear()
        self.cluster = self.attach()
        self.notebook = Notebook(self.cluster)
        self.model.new_notebook()

    @property
    def _plugins(self) -> list[sky.Plugin]:
        return [sky.plugins.torch()] if self.shape.framework else []

    # Cells

    def job(self, ranks: Sequence[int], lines: int = 0, waits: bool = False) -> Job:
        """Return a cell to start."""
        self._numbers += 1
        tag = f"<{self._numbers}>"
        job = Job(tag, lines, tuple(ranks), self.folder / f"go{self._numbers}" if waits else None)
        self.jobs.append(job)
        return job

    def begin(
        self, job: Job, statements: Sequence[Statement] = (), out: Sequence[str] = ()
    ) -> RunHandle:
        """Start a cell."""
        job.handle = self.notebook.start(
            job.code(statements), out=out, ranks=job.ranks, show=job.ranks
        )
        return job.handle

    def finish(self, job: Job, out: Sequence[str] = ()) -> None:
        """Follow a cell that comes to its end, and bind what it was asked for."""
        assert job.handle
        job.handle.follow(job.show)
        try:
            values = job.handle.values()
        except BaseException as error:
            raise AssertionError(f"{job.tag} of {job.ranks} raised {error!r}") from error
        job.drain(ends=0)
        job.check_lines(whole=job.ranks)
        if out:
            expected = self.model.take_back(out)
            found = values[job.ranks[0]]
            assert found == expected, f"{job.tag} gave {found}, not {expected}"
            self.notebook.names.update(found)
            handle, sync = job.handle, self.notebook.cluster.sync
            has = {rank: done.bound.keys() for rank, done in handle.done.items()}
            sync.returned(out, self.notebook.names, handle.task.update, has)

    def here(self, code: str) -> None:
        """Run a cell in the notebook."""
        self.notebook.here(code)

    # What can be known of it

    def pids(self) -> dict[int, int | None]:
        """Return the process of each rank, as its node counts."""
        return {rank.rank: rank.pid for rank in self.cluster.state.ranks}

    def process(self, rank: int) -> psutil.Process:
        """Return the process of a rank."""
        return psutil.Process(self.pids()[rank])

    @property
    def machines(self) -> list[dict[str, Any]]:
        """What the registry has of its machines."""
        row = registry.find(self.cluster.name)
        return row.machines if row else []

    def agent(self, machine: Mapping[str, Any]) -> psutil.Process | None:
        """Return the agent of a machine, if it is there."""
        pid = machine["pid"]
        return psutil.Process(pid) if psutil.pid_exists(pid) else None

    def path(self, machine: Mapping[str, Any], which: str) -> Path:
        """Return where this process finds the ``folder`` of a machine's agent, or its ``blobs``."""
        return Path(machine[which])

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something about the cluster is true."""
        until(Cells(self.cluster), condition, _SETTLED_WITHIN)

    def settle(self) -> None:
        """Wait until every rank is there and idle."""
        assert self.cluster.wait_until_idle(_SETTLED_WITHIN), f"busy: {self.cluster.state}"
        self.until(lambda: not self.cluster.alive or self.cluster.state.settled)

    def check(self) -> None:
        """Check what each rank holds, that runs are over, and that the group works."""
        names = f"{{n: globals()[n] for n in {NAMES} if n in globals()}}"
        found = self.notebook.ask(names)
        differences = list(self.model.differences(found))
        assert not differences, "; ".join(differences)
        for job in self.jobs:
            if job.handle:
                job.drain()
        self.jobs.clear()
        scheduler = self.cluster._scheduler
        assert not scheduler._runs, f"runs that are over are kept: {scheduler._runs}"
        recorders = scheduler.monitor._recorders
        assert not recorders, f"runs that are over are recorded: {recorders}"
        on_their_way = self.cluster.sync._remote_state._on_their_way
        assert not on_their_way, f"runs that are over are expected: {on_their_way}"

    def prove_group(self) -> None:
        """Check that all ranks are in one group."""
        count = len(self.cluster.all_ranks)
        if self.shape.framework and count > 1:  # one alone is in no group
            self.notebook.there(_PROOF)
            assert self.notebook.ask("_sum") == [count] * count
        else:
            assert self.notebook.ask("1") == [1] * count

    # Breaking it

    def cut_links(self) -> None:
        """Break every connection of the notebook to agents, as a network does."""
        for connection in self.cluster._controller.connections:
            if link := connection._link:
                try:
                    link._sock.shutdown(socket.SHUT_RDWR)
                except OSError:  # it is being made anew
                    continue

    @contextmanager
    def visitor(self) -> Iterator[Cluster]:
        """Have another kernel beside this one."""
        other = self.attach()
        try:
            yield other
        finally:
            other.close()

    def remove(self) -> None:
        """Remove what the test itself has made."""
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not os.path.exists(self.folder)  # noqa: PTH110


def _apart(text: str, expected: str) -> str:
    """Return where two texts part, in words."""
    pairs = enumerate(zip(text, expected, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(text), len(expected)))
    near = max(0, at - 20)
    missing = [line for line in expected.splitlines() if line not in text.splitlines()]
    return (
        f"{text[near : at + 40]!r}, not {expected[near : at + 40]!r}, at character {at}; "
        f"{missing[:5] or 'nothing'} of {len(missing)} missing"
    )
