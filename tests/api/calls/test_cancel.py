"""Futures that are cancelled: their calls do not begin, or are stopped."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.transport import event_loop
from tests.api.calls.test_calls import double, meet, rank_pids, wait_for, worker
from tests.api.calls.test_streams import stop_within
from tests.waiting import PATIENCE, until


@sky.compute
def stay(folder: Path) -> None:
    """Say that this has begun, and that it was stopped."""
    try:
        (folder / "stays").touch()
        wait_for.local(folder / "never")
    finally:
        (folder / "left").touch()


@sky.compute
def clean_up(folder: Path) -> None:
    try:
        stay.local(folder)
    finally:
        time.sleep(1.5)  # as long as saving something takes
        (folder / "clean").touch()


@sky.compute
def fail_when(path: Path) -> None:
    wait_for.local(path)
    raise ValueError("not 1")


async def _awaited(future: Any) -> Any:
    return await future


def test_nothing_waits_for_its_turn_where_all_calls_are_cancelled(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    cluster, go = pool.cluster, tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    running = cluster.run(Task(cluster.all_ranks, code=code))
    running.begin()
    stream = iter(sky.gather(double(1), double(2), stream=True) >> pool)
    stream.close()  # type: ignore[attr-defined]
    one, other = double(3) > pool, double(4) > pool
    assert one.cancel()

    def interrupted() -> list[str]:  # a run of an earlier test may end after its calls, and so now
        runs = cluster.ended_runs()
        return [each["title"] for each in runs if each["state"] == "interrupted"]

    until(lambda: interrupted()[-2:] == ["2 calls of double", "double()"])
    go.touch()
    running.follow()
    assert other.result() == 8


@pytest.mark.parametrize(
    "served", [Worker(), Worker(2), Worker(executor="process"), Worker(buffer=1)]
)
def test_one_that_runs_is_stopped_when_it_is_cancelled(
    pool: sky.ComputePool, tmp_path: Path, served: Worker
) -> None:
    pids = rank_pids(pool)
    with worker(pool, served):
        other = wait_for(tmp_path / "now") > pool
        future = stay(tmp_path) > pool
        assert wait_for.local(tmp_path / "stays") == "stays"
        assert future.cancel()
        assert concurrent.futures.wait([future], PATIENCE).not_done == set()
        if served.executor != "process":
            assert wait_for.local(tmp_path / "left") == "left"
        (tmp_path / "now").touch()
        assert other.result(PATIENCE) == "now"
        assert not other.cancel()
        assert pool.map(double, range(4)) == [0, 2, 4, 6]
    assert rank_pids(pool) == pids


def test_one_that_waits_for_items_is_stopped_when_it_is_cancelled(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    given, more = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        given.set()
        more.wait(PATIENCE)

    future = sky.compute(sum)(items()) > pool
    assert given.wait(PATIENCE)
    assert future.cancel()
    futures = [meet(tmp_path, str(n), 1) > pool for n in range(2)]
    assert sorted(each.result(PATIENCE) for each in futures) == [0, 1]
    more.set()


def test_what_is_awaited_no_more_is_stopped(pool: sky.ComputePool, tmp_path: Path) -> None:
    async def leave() -> None:
        task = asyncio.ensure_future(_awaited(stay(tmp_path) > pool))
        await asyncio.to_thread(wait_for.local, tmp_path / "stays")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert wait_for.local(tmp_path / "left") == "left"


def test_stop_ends_the_wait_for_a_call_and_not_the_call(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    future = wait_for(tmp_path / "now") > pool
    threading.Thread(target=stop_within, args=(event_loop.wait_for,)).start()
    with pytest.raises(Interrupted, match=r"the call goes on: `cancel\(\)`"):
        future.result()
    (tmp_path / "now").touch()
    assert future.result(PATIENCE) == "now"


def test_calls_that_run_beside_others_are_stopped_when_one_fails(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with worker(pool, Worker(concurrency=2)):
        other = wait_for(tmp_path / "now") > pool
        with pytest.raises(ValueError, match="not 1"):
            (stay(tmp_path) & fail_when(tmp_path / "stays")) >> pool
        assert wait_for.local(tmp_path / "left") == "left"
        (tmp_path / "now").touch()
        assert other.result(PATIENCE) == "now"


@pytest.mark.parametrize("limit", [None, 0.5])
def test_one_that_is_stopped_can_clean_up(
    pool: sky.ComputePool, tmp_path: Path, limit: float | None
) -> None:
    future = clean_up(tmp_path).with_timeout(limit) > pool
    assert wait_for.local(tmp_path / "stays") == "stays"
    if limit is None:
        future.cancel()
    assert double(1) @ pool == [2, 2]
    assert future.done()
    assert (tmp_path / "clean").exists()
