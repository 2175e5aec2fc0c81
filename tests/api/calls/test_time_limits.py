"""Time limits of calls, of which some wait on a rank and others do not react."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.cluster.calls import time_limits
from jupyter_sky.cluster.network.upload import Uploads
from tests.api.calls.test_calls import double, rank_pids, wait_for, worker
from tests.waiting import PATIENCE


@sky.compute
def go_on_until(path: Path) -> None:
    """Ignore every attempt to stop this until there is a file."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            wait_for.local(path)
            return


def test_the_time_of_a_call_counts_from_when_it_begins(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    double(1) @ pool  # imports this module
    with worker(pool, Worker(buffer=1)):
        held = wait_for(tmp_path / "now") > pool  # on rank 0
        late = go_on_until(tmp_path / "now").with_timeout(1.1) > pool  # on rank 1
        behind = [double(n).with_timeout(1.0) > pool for n in range(2)]  # behind these
        assert isinstance(late.exception(PATIENCE), TimeoutError)
        assert not any(each.done() for each in behind)
        (tmp_path / "now").touch()
        assert held.result(PATIENCE) == "now"
        assert [each.result(PATIENCE) for each in behind] == [0, 2]


class HeldUpload:
    """The first upload of a call: it goes on when the test says so."""

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    async def wait(self) -> None:
        self.has_begun.set()
        while not self.may_go_on.is_set():
            await asyncio.sleep(0.01)


@pytest.fixture
def upload(monkeypatch: pytest.MonkeyPatch) -> HeldUpload:
    held, put = HeldUpload(), Uploads.put_before

    async def put_later(self: Uploads, request: Any, blobs: Any, what: str) -> None:
        if what == "a call" and blobs and not held.has_begun.is_set():
            await held.wait()
        await put(self, request, blobs, what)

    monkeypatch.setattr(Uploads, "put_before", put_later)
    return held


@sky.compute
def length(data: bytes) -> int:
    return len(data)


LARGE = bytes(1_000_000)


def test_the_time_of_a_call_does_not_count_the_upload_of_its_arguments(
    pool: sky.ComputePool, tmp_path: Path, upload: HeldUpload
) -> None:
    double(1) @ pool  # imports this module
    slow = length(LARGE).with_timeout(3.0) > pool  # on rank 0
    late = go_on_until(tmp_path / "now").with_timeout(3.5) > pool  # on rank 1, given up after it
    assert isinstance(late.exception(PATIENCE), TimeoutError)
    upload.may_go_on.set()
    assert slow.result(PATIENCE) == len(LARGE)
    (tmp_path / "now").touch()


def test_a_call_whose_rank_is_lost_before_its_arguments_are_there_needs_no_further_try(
    pool: sky.ComputePool, upload: HeldUpload
) -> None:
    first, _ = rank_pids(pool)
    slow = length(LARGE).with_retries(0) > pool
    assert upload.has_begun.wait(PATIENCE)
    os.kill(first, signal.SIGKILL)
    assert slow.result(PATIENCE) == len(LARGE)
    upload.may_go_on.set()
    assert pool.map(length, [b"", b"1"]) == [0, 1]


def test_what_waits_behind_a_call_that_never_ends_is_done_elsewhere(
    pool: sky.ComputePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "_KILL_AFTER", 0.2)
    double(1) @ pool  # imports this module, in which the time limit could end a call
    pids = rank_pids(pool)
    with worker(pool, Worker(buffer=1)):
        late = [go_on_until(tmp_path / "never").with_timeout(0.1) > pool for _ in range(2)]
        behind = [double(n).with_retries(0) > pool for n in range(2)]
        assert [each.result(PATIENCE) for each in behind] == [0, 2]
        assert all(isinstance(each.exception(PATIENCE), TimeoutError) for each in late)
    assert set(rank_pids(pool)).isdisjoint(pids)


@pytest.mark.parametrize("served", [Worker(), Worker(2), Worker(executor="process")])
def test_a_limit_can_be_endless(
    pool: sky.ComputePool, served: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    with worker(pool, served):
        assert pool.map(double, range(3), timeout=math.inf) == [0, 2, 4]
    assert capfd.readouterr().err == ""
