"""A cluster of four ranks in one process group, and cells that run on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.cluster.cells import Cells, start, trains
from tests.cluster.namespace.notebook import Notebook
from tests.conftest import shared_registry
from tests.waiting import until

__all__ = ["Cells", "start"]


_PREPARE = "import os, time, torch, torch.distributed as dist\nrank = dist.get_rank()"


def prepared() -> Iterator[Cells]:
    """Yield a cluster whose ranks have imported what most cells need, and end it."""
    cells = start(framework=trains())
    cells.run(_PREPARE)
    yield cells
    cells.cluster.down()


@pytest.fixture(scope="session")
def shared(workplace: Path) -> Iterator[Cells]:
    with shared_registry(workplace):
        life = prepared()
        cells = next(life)
    yield cells
    with shared_registry(workplace):
        next(life, None)


@pytest.fixture
def cells(shared: Cells, workplace: Path) -> Iterator[Cells]:
    """A shared cluster, for tests that leave it as it was."""
    shared.namespace.clear()
    with shared_registry(workplace):
        before = _processes(shared)
        yield shared
        _end_runs(shared)
        # A rank that was lost, or that Stop had to kill, is as empty as it began.
        if shared.cluster.alive and _processes(shared) != before:
            shared.run(_PREPARE)


@pytest.fixture
def held_up(notebook: Notebook, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Let cells that call ``held_up()`` on ranks wait until the test calls it too."""
    mark = tmp_path / "go on"
    notebook.there(
        "def held_up():\n"
        "    import time, pathlib\n"
        f"    while not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.01)"
    )
    yield mark.touch
    mark.touch()


def _end_runs(cells: Cells) -> None:
    """Stop what a test that has failed has left, so that it is the only one that does."""
    runs = list(cells.cluster._scheduler._runs.values())
    for run in runs:
        if not run.finished:
            cells.cluster.interrupt_run(run.id)
    until(lambda: all(run.finished for run in runs))


def _processes(cells: Cells) -> list[int | None]:
    return [rank.pid for rank in cells.cluster.state.ranks]


@pytest.fixture
def new() -> Iterator[Callable[..., Cells]]:
    """Starts clusters of the test's own and ends them."""
    started: list[Cells] = []

    def make(*args: Any, **kwargs: Any) -> Cells:
        started.append(start(*args, **kwargs))
        return started[-1]

    yield make
    for cells in started:
        if cells.cluster.state.phase != "down":
            cells.cluster.down()


@pytest.fixture
def new_with() -> Iterator[Callable[..., Cells]]:
    """Starts clusters with plugins of the test's own and ends them."""
    started: list[Cells] = []

    def make(plugins: Sequence[sky.Plugin], nodes: int) -> Cells:
        wanted = ClusterSpec(name=f"test-{uuid.uuid4().hex[:8]}", nodes=nodes)
        made, runtime_env = assemble(wanted, plugins)
        started.append(Cells(Cluster.start(made, Local(), runtime_env, timeouts=Timeouts(stop=20))))
        return started[-1]

    yield make
    for cells in started:
        cells.cluster.down()


def taken_up(name: str, *, provider: Local | None = None, framework: bool = True) -> Cells:
    """Take up a cluster that another kernel has left."""
    row = registry.find(name)
    assert row is not None
    _, runtime_env = assemble(ClusterSpec(name=name), [sky.plugins.torch()] if framework else [])
    cluster = Cluster.attach(row, provider or Local(), runtime_env, timeouts=Timeouts(stop=20))
    assert cluster is not None
    return Cells(cluster)


@pytest.fixture
def attached() -> Iterator[Callable[..., Cells]]:
    """Takes up clusters that another kernel has left, and ends them."""
    found: list[Cells] = []

    def attach(name: str, framework: bool = True) -> Cells:
        found.append(taken_up(name, framework=framework))
        return found[-1]

    yield attach
    for cells in found:
        cells.cluster.down()
