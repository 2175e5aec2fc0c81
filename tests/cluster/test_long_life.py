"""What is done again and again leaves nothing in kernel, agent and rank.

``python -m tests.benchmarks --only long-life`` does each thing a hundred times as often.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from collections import Counter

import psutil

from tests.cluster.conftest import Cells
from tests.faults.parts import agent_of, attach
from tests.waiting import until

CELLS = 100
TURNS = 5
REMEMBERED = 30  # runs that a kernel can say something of, and more


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
    files = agent.num_fds() + kernel.num_fds()
    found = [(*objects(cells), megabytes(agent))]
    for _ in range(2):
        work(cells, CELLS)
        found.append((*objects(cells), megabytes(agent)))
    grown = [
        [more - less for less, more in itertools.pairwise(each)]
        for each in zip(*found, strict=True)
    ]
    # A leak is one for each cell or more, each time; other threads make and drop a few meanwhile.
    assert min(grown[0]) < CELLS / 2
    assert min(grown[1]) < CELLS / 2
    assert min(grown[2]) < 1.0  # of the 2 MB that each time were sent
    until(lambda: agent.num_fds() + kernel.num_fds() <= files)


def ours() -> Counter[str]:
    """Count the objects of this process that are of our own types, by type."""
    gc.collect()
    types = [type(each) for each in gc.get_objects()]
    # Some classes of others have no text there.
    return Counter(
        each.__qualname__ for each in types if str(each.__module__).startswith("jupyter_sky")
    )


def test_pushes_restarts_and_attachments_leave_nothing_behind(new) -> None:
    cells = new(nodes=2, framework=False)
    agent, kernel = agent_of(cells), psutil.Process()

    def turn(number: int) -> None:
        cells.namespace["data"] = bytes([number]) * 300_000
        assert cells.ask("len(data)", names=["data"]) == [300_000] * 2
        cells.cluster.restart([number % 2])
        other = attach(cells.cluster.name)
        assert other.ask("1") == [1] * 2
        other.cluster.close()

    for _ in range(REMEMBERED):
        cells.run("pass")
    for number in range(TURNS):
        turn(number)
    before, files = ours(), agent.num_fds() + kernel.num_fds()
    there = agent.num_threads()
    for number in range(TURNS):
        turn(number)
    grown = {name: count - before[name] for name, count in ours().items()}
    grown.pop("RankSample", None)  # of the last ten minutes: one every few seconds, and no more
    grown.pop("Sample", None)
    assert {name: count for name, count in grown.items() if count >= TURNS} == {}
    assert agent.num_threads() < there + TURNS  # a pool of threads fills as it is needed
    # The pipes of a process that has ended are closed a moment after the next one has its own.
    until(lambda: agent.num_fds() + kernel.num_fds() <= files)
