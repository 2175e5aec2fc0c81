"""A cluster on hosts of the lab, over SSH: what breaks there that cannot break on one computer.

Each host has a network, a file system for shared memory, and processes of its own, which this
machine counts differently.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from jupyter_sky.cluster.errors import Interrupted, RankLost
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.ssh.provider import SSH
from tests.chance.base import step
from tests.chance.machine import Chance
from tests.chance.model import Statement
from tests.chance.strategies import LINES, SOME, STATEMENTS
from tests.chance.world import Shape, World
from tests.lab import Host, Lab

HOSTS = 5
"""One more than a cluster has at most, so that there is one to take the place of another."""

# Seconds of a cable that is pulled: shorter than what ends a run, also where it takes to notice.
PAUSE = st.sampled_from([0.05, 0.5, 2.0, 4.0])
HOST = st.integers(0, 3)
WAYS = st.sampled_from(["cable", "host", "sshd", "slow", "lossy", "between"])

_broken_network = rule(
    some=SOME, statements=STATEMENTS, lines=LINES, way=WAYS, number=HOST, pause=PAUSE,
    size=st.sampled_from([0, 300_000]),
)  # fmt: skip


class HostsWorld(World):
    """A cluster on the first hosts of a lab, with its notebook on this machine."""

    def __init__(self, shape: Shape, lab: Lab) -> None:
        self.lab = lab
        self.hosts = tuple(host.name for host in lab.hosts)
        super().__init__(shape)

    def _nodes_come_from(self) -> Provider:
        return SSH(self.hosts, python=sys.executable)

    def host(self, machine: Mapping[str, Any]) -> Host:
        """Return the host of a machine."""
        return next(host for host in self.lab.hosts if host.name == machine["host"])

    def agent(self, machine: Mapping[str, Any]) -> psutil.Process | None:
        """Return the agent of a machine, if it is there."""
        found = self.host(machine).processes(f"jupyter_sky[.]node {machine['folder']}")
        return found[0] if found else None

    def path(self, machine: Mapping[str, Any], which: str) -> Path:
        """Return where this process finds the ``folder`` of a machine's agent, or its ``blobs``."""
        return Path(f"/proc/{self.host(machine).pid}/root{machine[which]}")

    def pids(self) -> dict[int, int | None]:
        """Return a number of each rank's process, which no process of another host has."""
        names = {rank: node.name for node in self.cluster.state.nodes for rank in node.ranks}
        return {
            rank: pid and 10**9 * self.hosts.index(str(names[rank])) + pid
            for rank, pid in super().pids().items()
        }

    def process(self, rank: int) -> psutil.Process:
        """Return the process of a rank, as this machine counts."""
        pid = next(each.pid for each in self.cluster.state.ranks if each.rank == rank)
        [node] = [node for node in self.cluster.state.nodes if rank in node.ranks]
        [host] = [host for host in self.lab.hosts if host.name == node.name]
        return next(each for each in host.processes() if _own_number(each) == pid)


class HostsChance(Chance):
    """What `Chance` does, on hosts; and hosts, their cables and their SSH servers that fail.

    Attributes
    ----------
    lab
        The hosts.
    """

    lab: ClassVar[Lab]
    shapes: ClassVar[list[Shape]] = [Shape(1), Shape(2, agents=2), Shape(3, agents=3)]

    # The sidebar of this machine asks no host: it knows what kernels tell.
    sidebar_looks = None  # type: ignore[assignment]

    def _make(self, shape: Shape) -> World:
        return HostsWorld(shape, self.lab)

    def teardown(self) -> None:
        super().teardown()
        for host in self.lab.hosts:
            if not host.is_up:
                host.start()
            host.speed_up()

    @_broken_network
    @step
    def network_breaks(
        self,
        some: int,
        statements: list[Statement],
        lines: int,
        way: str,
        number: int,
        pause: float,
        size: int,
    ) -> None:
        """Break the network under a cell that is inside; it goes on, and comes to its end."""
        if size:
            self._assign("data", os.urandom(size))
        job, statements = self._waiting_job(some, statements, lines)
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)
        broken = contextlib.ExitStack()
        timer = threading.Timer(pause, broken.close)

        def act() -> None:
            broken.enter_context(self._broken(way, number))
            job.go.touch()
            timer.start()

        try:
            self._when_inside(job, act)
        finally:
            if timer.ident:
                timer.join()
        self._ends_well(job)

    @_broken_network
    @step
    def network_breaks_while_a_cell_begins(
        self,
        some: int,
        statements: list[Statement],
        lines: int,
        way: str,
        number: int,
        pause: float,
        size: int,
    ) -> None:
        """Break the network, and ask for a cell then, which may have to be sent data."""
        if size:
            self._assign("data", os.urandom(size))
        job = self.world.job(self._ranks(some), lines)
        measure = [Statement("measure", "b", "data")] if size else []
        statements = self._possible(job.ranks, [*statements, *measure])
        broken = contextlib.ExitStack()
        timer = threading.Timer(pause, broken.close)
        broken.enter_context(self._broken(way, number))
        timer.start()
        try:
            self.world.begin(job, statements)
            self.world.model.run(job.ranks, statements)
            self.world.finish(job)
        finally:
            timer.join()

    @rule(some=SOME, statements=STATEMENTS, lines=LINES, number=HOST, pause=PAUSE,
          way=st.sampled_from(["cable", "host", "sshd"]))  # fmt: skip
    @step
    def stop_while_the_network_is_broken(
        self,
        some: int,
        statements: list[Statement],
        lines: int,
        number: int,
        pause: float,
        way: str,
    ) -> None:
        job, statements = self._waiting_job(some, statements, lines)
        self.world.begin(job, statements)
        self.world.model.run(job.ranks, statements)
        broken = contextlib.ExitStack()
        timer = threading.Timer(pause, broken.close)

        def act() -> None:
            broken.enter_context(self._broken(way, number))
            timer.start()
            os.kill(os.getpid(), signal.SIGINT)

        try:
            with contextlib.suppress(Interrupted):
                self._when_inside(job, act)
        finally:
            if timer.ident:
                timer.join()
        self._raises(job, Interrupted)
        job.check_lines()

    @rule(nodes=st.integers(1, 4), way=st.sampled_from(["slow", "lossy"]), number=HOST)
    @step
    def scale_over_a_bad_network(self, nodes: int, way: str, number: int) -> None:
        if nodes != len(self.world.cluster.state.nodes):
            with self._broken(way, number):
                self.world.cluster.scale(nodes)
            self.world.model.resize(nodes)

    @rule(way=WAYS, number=HOST, pause=PAUSE)
    @step
    def change_kernel_while_the_network_is_broken(
        self, way: str, number: int, pause: float
    ) -> None:
        """Attach from a new kernel while hosts do not answer: it waits, or says "try again"."""
        broken = contextlib.ExitStack()
        broken.enter_context(self._broken(way, number))
        timer = threading.Timer(pause, broken.close)
        timer.start()
        try:
            self.world.change_kernel()
        except SkyError as error:
            assert "try again" in str(error), error
            timer.join()
            self.world.change_kernel()
        finally:
            timer.join()

    @precondition(lambda self: self.world.shape.agents > 1 and len(self.world.pids()) > 1)
    @rule(back=st.booleans())
    @step
    def power_is_cut(self, back: bool) -> None:
        """Cut the power of a host, of which nobody knows yet when the next cell begins.

        That cell may have begun there: it says so then, and the one after it runs.
        """
        world = self.world
        before = world.pids()
        ranks = sorted(world.cluster._controller.connections[-1].ranks)
        host = world.host(world.machines[-1])
        host.power_off()
        if back:
            host.start()
        job = world.job(world.cluster.all_ranks, 3)
        world.begin(job)
        assert job.handle
        job.handle.follow(job.show)
        with contextlib.suppress(RankLost):
            job.handle.values()
        job.check_lines()
        self._await_restart(ranks, before)
        if not back:
            host.start()

    def _broken(self, way: str, number: int) -> contextlib.AbstractContextManager[None]:
        """Break something of the network, and mend it in the end."""
        machines = self.world.machines
        host = self.world.host(machines[number % len(machines)])
        other = self.world.host(machines[(number + 1) % len(machines)])
        lab = self.lab

        def slow() -> None:
            host.slow_down(1.0)

        def lossy() -> None:
            host.slow_down(1000.0, 0.1)

        def apart() -> None:
            host.block(other)

        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "cable": (lab.unplug, lab.plug_in),
            "host": (host.cut, host.mend),
            "sshd": (lambda: _end_sshd(host), host.restart_sshd),
            "slow": (slow, host.speed_up),
            "lossy": (lossy, host.speed_up),
            "between": (apart, host.speed_up) if host is not other else (slow, host.speed_up),
        }
        return _for_a_while(*ways[way])


@contextmanager
def _for_a_while(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


def _end_sshd(host: Host) -> None:
    """End the SSH server of a host, with all its connections."""
    for server in host.processes("sshd"):
        with contextlib.suppress(psutil.NoSuchProcess):
            server.kill()


def _own_number(process: psutil.Process) -> int:
    """Return how the process's own host counts it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
