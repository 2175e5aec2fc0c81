"""Runs of several notebooks begin in the order in which they came to wait."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs import other_notebooks
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import UsageError
from jupyter_sky.transport.event_loop import call
from tests.cluster.runs.test_visits import busy_with, kernels, slow_down
from tests.waiting import until

__all__ = ["kernels"]

SEEN = "seen = [*globals().get('seen', []), {!r}]"


def until_told(path: Path) -> str:
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


def has_queued(kernel: Cluster, number: int) -> bool:
    return len(kernel.state.queue) == number


def test_runs_that_wait_begin_in_the_order_in_which_they_came(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine, *theirs = kernels
    go, tasks = tmp_path / "go", [Task((0, 1), code=SEEN.format(n)) for n in range(3)]
    holds = mine.run(Task((0, 1), code=until_told(go)))
    holds.begin()
    until(lambda: all(busy_with(kernel, holds.id) for kernel in kernels))
    # Who came first hears last that its turn has come, and the notebook itself has more to do.
    slow_down(monkeypatch, theirs[0], 0)
    runs = [kernel.run(task) for kernel, task in zip((*theirs, mine), tasks, strict=True)]
    for number, run in enumerate(runs, 1):
        run.begin()
        if run is not runs[-1]:  # it waits for its own notebook's run
            until(partial(has_queued, mine, number))
    go.touch()
    for run in (holds, *runs):
        run.follow()
        run.check()
    last = mine.run(Task((0, 1), code="", values={0: ["seen"], 1: ["seen"]}))
    last.follow()
    assert last.values() == {rank: {"seen": [0, 1, 2]} for rank in (0, 1)}
    until(lambda: not any(kernel.state.is_in_use for kernel in kernels))


def test_what_needs_an_idle_cluster_does_not_slip_between_two_runs(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine, other, _ = kernels
    go = tmp_path / "go"
    holds = mine.run(Task((0, 1), code=until_told(go)))
    holds.begin()
    until(partial(busy_with, other, holds.id))
    waits = other.run(Task((0, 1), code="pass"))
    waits.begin()
    until(lambda: mine.state.queue)
    connection = other._scheduler.controller.connections[0]
    post, may_begin = connection.post, threading.Event()

    def post_later(*request: Any) -> None:
        if may_begin.is_set():
            post(*request)
        else:
            asyncio.get_running_loop().call_later(0.01, post_later, *request)

    monkeypatch.setattr(connection, "post", post_later)
    monkeypatch.setattr(other_notebooks, "_GONE_WITHIN", 0.1)
    go.touch()
    holds.follow()
    until(lambda: not mine.state.busy_runs)
    with pytest.raises(UsageError, match="plugins are added between runs"):
        mine.plugins.check_idle()
    with pytest.raises(UsageError, match="is busy: scale it when the run is over"):
        mine.scale(3)
    with pytest.raises(UsageError, match="is busy: stop it when the run is over"):
        mine.power.check_stop()
    may_begin.set()
    waits.follow()
    waits.check()
    until(lambda: not mine.state.is_in_use)
    mine.plugins.check_idle()


def test_a_run_waits_again_where_another_notebook_was_first(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine, other, _ = kernels
    connection = other._scheduler.controller.connections[0]
    post, may_begin = connection.post, threading.Event()

    def post_later(*request: Any) -> None:
        if may_begin.is_set():
            post(*request)
        else:
            asyncio.get_running_loop().call_later(0.01, post_later, *request)

    monkeypatch.setattr(connection, "post", post_later)
    go, limit = tmp_path / "go", 5.0
    ticks: list[bool] = []
    run = other.run(Task((0, 1), code="pass"))
    following = threading.Thread(
        target=partial(run.follow, timeout=limit, tick=lambda: ticks.append(run.sent))
    )
    following.start()
    until(lambda: ticks.count(True) > 1)  # so that its time is being counted
    would_end = time.monotonic() + limit
    holds = mine.run(Task((0, 1), code=until_told(go)))
    holds.begin()
    until(lambda: busy_with(mine, holds.id))
    may_begin.set()
    until(lambda: other.snapshot(run=run.id)["run"]["state"] == "waiting")
    until(lambda: time.monotonic() > would_end)
    assert not run.finished
    go.touch()
    following.join()
    run.check()
    assert not run.stopped


def test_a_notebook_that_is_gone_keeps_nobody_waiting(
    kernels: list[Cluster], tmp_path: Path
) -> None:
    mine, gone, other = kernels
    go = tmp_path / "go"
    holds = mine.run(Task((0, 1), code=until_told(go)))
    holds.begin()
    until(lambda: all(busy_with(kernel, holds.id) for kernel in kernels))
    left, waits = (kernel.run(Task((0, 1), code="pass")) for kernel in (gone, other))
    for number, run in enumerate((left, waits), 1):
        run.begin()
        until(partial(has_queued, mine, number))
    # As if it were killed: it takes nothing out of the queue.
    for connection in gone._scheduler.controller.connections:
        call(connection.close)
    go.touch()
    waits.follow()
    waits.check()
