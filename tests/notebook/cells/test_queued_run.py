"""Runs that wait for their cluster: what becomes of those that do not begin."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import cast

import pytest
from IPython.display import DisplayHandle

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RunStopped
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.cells.cluster_start import ClusterStart, Started
from jupyter_sky.notebook.cells.queued_run import Begin, QueuedRun
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.base import Progress
from tests.notebook.kernels import let_go, new_shell

LIMIT = 60.0


class Values:
    """What a cell would send."""


@pytest.fixture
def session() -> Iterator[Session]:
    shell = new_shell()
    yield Session(shell, Sky())
    let_go(shell)


class Queue:
    """A cluster that waits in a queue until it is told that there are no nodes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_over = threading.Event()
        self.start = ClusterStart("later", self._wait, lambda started: cast(Cluster, started))

    def join(self, begin: Begin) -> QueuedRun:
        return QueuedRun(self._session, self.start, CellOptions(), "x = 1", begin)

    def end(self) -> None:
        self._is_over.set()

    def _wait(self, say: Progress) -> Started:
        assert self._is_over.wait(LIMIT)
        raise SkyError("there are no nodes.")


def beginning_with(values: Values) -> Begin:
    def begin(cluster: Cluster, strip: DisplayHandle | None) -> None:
        raise AssertionError(f"{cluster} is not there for {values}")

    return begin


def is_gone(values: weakref.ref[Values]) -> bool:
    gc.collect()
    return values() is None


def test_one_that_does_not_begin_keeps_no_values_alive(session: Session) -> None:
    async def look() -> None:
        queue, values = Queue(session), [Values(), Values()]
        cancelled, failed = (queue.join(beginning_with(each)) for each in values)
        first, second = map(weakref.ref, values)
        values.clear()
        cancelled.cancel()
        assert is_gone(first)
        assert not is_gone(second)
        queue.end()
        with pytest.raises(SkyError, match="there are no nodes"):
            await failed
        assert is_gone(second)
        assert repr(failed) == "<later · x = 1: failed: there are no nodes>"

    asyncio.run(look())


def test_one_that_is_cancelled_is_awaited_no_longer(session: Session) -> None:
    async def look() -> None:
        queue = Queue(session)
        cancelled, other = (queue.join(beginning_with(Values())) for _ in range(2))
        waiting = asyncio.ensure_future(cancelled)
        await asyncio.sleep(0)  # it waits for the cluster from now on
        cancelled.cancel()
        try:
            with pytest.raises(RunStopped, match="was stopped before it began"):
                await asyncio.wait_for(waiting, LIMIT / 2)
            assert not other.done
        finally:
            queue.end()
        with pytest.raises(SkyError, match="there are no nodes"):
            await other

    asyncio.run(look())
