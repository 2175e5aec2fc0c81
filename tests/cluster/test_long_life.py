"""What many cells leave in kernel, agent and rank: nothing; ``tests.benchmarks`` takes 10,000."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import psutil

from tests.cluster.conftest import Cells
from tests.faults.parts import agent_of

CELLS = 150


def work(cells: Cells, count: int) -> None:
    """Run cells that print, take a value back, use new data, and now and then fail."""
    for n in range(count):
        cells.namespace.update(n=n, data=bytes([n % 256]) * 20_000)
        cells.run(
            "print('step', n)\ntotal = n + len(data)", names=["n", "data"], values={0: ["total"]}
        )
        if n % 50 == 49:
            with contextlib.suppress(ZeroDivisionError):
                cells.run("1 / 0")


def objects(cells: Cells) -> tuple[int, int]:
    """Count the objects of this process and of the rank that could refer to others.

    A loop keeps timers that were cancelled, each with its context, until there are a hundred: those
    come and go, and are not counted.
    """
    gc.collect()
    here = gc.get_objects()
    cancelled = sum(type(each) is asyncio.TimerHandle and each.cancelled() for each in here)
    counted = "(__import__('gc').collect(), len(__import__('gc').get_objects()))[1]"
    return len(here) - 2 * cancelled, cells.ask(counted)[0]


def megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def test_cells_leave_nothing_behind(new) -> None:
    cells = new(nodes=1, framework=False)
    agent, kernel = agent_of(cells), psutil.Process()
    work(cells, CELLS)
    before, size, files = objects(cells), megabytes(agent), agent.num_fds() + kernel.num_fds()
    work(cells, CELLS)
    for there, then in zip(objects(cells), before, strict=True):
        # A leak is one for each cell or more; other threads make and drop a few meanwhile.
        assert there - then < CELLS / 2
    assert megabytes(agent) - size < 1.5
    assert agent.num_fds() + kernel.num_fds() <= files
