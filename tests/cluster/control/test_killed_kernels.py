"""Kernels that are killed at moments of chance: the next one finds a whole cluster.

``python -m tests.cluster.control.test_killed_kernels SEED`` goes on for as long as is wanted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest

import jupyter_sky as sky
from jupyter_sky.providers.local import Local
from tests.cluster.cells import PEERS, SUMMED
from tests.cluster.conftest import Cells, start, taken_up
from tests.forks import forks_with

FAILS_IN_A_COLLECTIVE = """
if "torch" in globals() and dist.is_initialized() and dist.get_rank() == 0:
    dist.recv(torch.ones(1), 1)
1 / 0
"""

# What a kernel does until it is killed


def scale(cells: Cells, chance: random.Random) -> None:
    there = len(cells.cluster.all_ranks)
    cells.cluster.scale(chance.choice([count for count in (1, 2, 3) if count != there]))


def restart(cells: Cells, chance: random.Random) -> None:
    cells.cluster.restart()


def fail(cells: Cells, chance: random.Random) -> None:
    cells.run(FAILS_IN_A_COLLECTIVE)


def lose_a_rank(cells: Cells, chance: random.Random) -> None:
    if pids := [rank.pid for rank in cells.cluster.state.ranks if rank.pid]:
        os.kill(chance.choice(pids), signal.SIGKILL)
    cells.run("pass")


def stop(cells: Cells, chance: random.Random) -> None:
    run = cells.start("import time\ntime.sleep(600)")
    run.stop()
    run.follow()


STEPS: list[Callable[[Cells, random.Random], None]] = [
    *(scale, scale, restart, fail, lose_a_rank, stop)
]


@dataclass(frozen=True)
class Victim:
    """A kernel that uses a cluster and is killed."""

    cluster: str
    machines: int
    framework: bool
    seed: str

    def live(self, variables: Mapping[str, str]) -> None:
        """Be that kernel, in an environment with these variables."""
        os.environ.clear()
        os.environ.update(variables)
        chance = random.Random(self.seed)
        cells = self.taken_up()
        within = chance.random() * chance.choice([0.05, 0.2, 0.6, 1.5])
        threading.Timer(within, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            with contextlib.suppress(Exception, KeyboardInterrupt):  # as in cells that fail
                chance.choice(STEPS)(cells, chance)

    def taken_up(self) -> Cells:
        provider = Local(machines=self.machines)
        return taken_up(self.cluster, provider=provider, framework=self.framework)


def kill_kernels(machines: int, framework: bool, seeds: Iterable[str]) -> None:
    """Kill a kernel for each seed, and check what the next one finds."""
    cells = start(2, provider=Local(machines=machines), framework=framework)
    prepare(cells, framework)
    cells.cluster.close()
    try:
        for seed in seeds:
            victim = Victim(cells.cluster.name, machines, framework, seed)
            kernel = forks_with(__name__).Process(target=victim.live, args=(dict(os.environ),))
            kernel.start()
            kernel.join()
            assert kernel.exitcode == -signal.SIGKILL, seed
            cells = victim.taken_up()
            cells.cluster.interrupt()  # what still runs
            check(cells, framework, seed)
            cells.cluster.close()
    finally:
        with contextlib.suppress(sky.SkyError):
            cells.cluster.close()
        victim.taken_up().cluster.down()


def prepare(cells: Cells, framework: bool) -> None:
    cells.run("import torch, torch.distributed as dist" if framework else "pass")


def check(cells: Cells, framework: bool, seed: str) -> None:
    """Check that all ranks are in one group, and know of each other."""
    ranks = len(cells.cluster.all_ranks)
    prepare(cells, framework)
    if framework:
        assert cells.ask(SUMMED) == [float(ranks)] * ranks, seed
    assert cells.ask(PEERS) == [ranks] * ranks, seed


@pytest.mark.parametrize(("machines", "framework"), [(1, True), (2, False)])
def test_the_next_kernel_finds_a_whole_cluster(machines: int, framework: bool) -> None:
    kill_kernels(machines, framework, [f"{machines} {number}" for number in range(8)])


if __name__ == "__main__":
    endless = (f"{sys.argv[1]} {number}" for number in itertools.count())
    kill_kernels(1, True, (print(seed) or seed for seed in endless))
