"""Notebooks whose cluster another one changes keep it, and say what has happened to it."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import scaling
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.local import Local
from jupyter_sky.transport.event_loop import call
from tests.cluster.runs.test_visits import kernels
from tests.waiting import PATIENCE, until

__all__ = ["kernels"]


def test_a_cluster_from_which_another_notebook_removes_a_node_is_not_lost(
    kernels: list[Cluster],
) -> None:
    mine, other, _ = kernels
    run = mine.run(Task((0, 1), code="kept = 7"))
    run.follow()
    run.check()
    mine.scale(1)
    until(lambda: other.outdated or not other.alive)
    cell = other.run(Task((0, 1), code="pass"))
    cell.follow()
    with pytest.raises(SkyError, match="was changed by another kernel: run the cell again"):
        cell.check()
    assert other.state.phase != "lost"
    # So the next cell of that notebook finds it again, and does not end it for this one.
    row = registry.find(mine.name)
    assert row is not None
    again = Cluster.attach(row, Local(), mine.runtime_env)
    assert again is not None
    for kernel in (again, mine):
        run = kernel.run(Task((0,), code="", values={0: ["kept"]}))
        run.follow()
        assert run.values() == {0: {"kept": 7}}
    again.close()


def test_a_notebook_that_has_not_heard_of_another_size_does_not_end_the_cluster(
    kernels: list[Cluster],
) -> None:
    mine, other, _ = kernels
    # Its link to the node that leaves was cut before that said why it ends.
    gone = other._scheduler.controller.connections[1]
    call(gone.declare_lost, "is gone")
    until(lambda: not other.alive)
    mine.scale(1)
    assert not other.power.end_lost()
    run = mine.run(Task((0,), code="pass"))
    run.follow()
    run.check()


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_run_waits_while_another_notebook_changes_the_number_of_nodes(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    mine, other, _ = kernels
    is_changing, may_go_on = threading.Event(), threading.Event()
    scale = scaling.scale

    async def scale_slowly(*asked: Any) -> list[str]:
        is_changing.set()
        await asyncio.to_thread(may_go_on.wait)
        return await scale(*asked)

    monkeypatch.setattr(scaling, "scale", scale_slowly)
    with ThreadPoolExecutor() as pool:
        scaling_it = pool.submit(mine.scale, nodes)
        is_changing.wait()
        told: queue.SimpleQueue[object] = queue.SimpleQueue()
        waits = other.run(Task((0, 1), code="import time\ntime.sleep(600)"))
        waits.listen(told.put, partial(told.put, "over"))
        while "this one begins when that is over" not in str(told.get(timeout=PATIENCE)):
            pass
        may_go_on.set()
        assert scaling_it.result(PATIENCE) == []
    while told.get(timeout=PATIENCE) != "over":
        pass
    with pytest.raises(SkyError, match="was changed by another kernel: run the cell again"):
        waits.check()
