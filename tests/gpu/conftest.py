"""The machine with a GPU, its time limit, and clusters on it.

It stands alone: on such a machine there is nothing of what the other tests need.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jupyter_sky as sky
from tests.cluster.cells import Cells, start
from tests.gpu import machine
from tests.gpu.figures import Check

WITHIN = 450.0
"""Seconds that all of it takes at most."""

_A_TEST = 110  # seconds

_ends = time.monotonic() + WITHIN


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark of what measures a GPU as a whole known."""
    config.addinivalue_line("markers", "alone: while nothing else uses the GPU")


@pytest.fixture(scope="session")
def listed() -> machine.GPUMachine:
    """Return the machine with its GPUs; a test is skipped where there is none."""
    found = machine.find()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def gpu(
    listed: machine.GPUMachine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[machine.GPUMachine]:
    """Return the machine, for a test that gets a part of the time and leaves nothing behind."""
    left = _ends - time.monotonic()
    if left < 5:
        pytest.fail(f"no time was left for it: all of it takes {WITHIN:.0f} s at most")

    def is_over(*_: Any) -> None:
        raise TimeoutError("the time for this check was over")

    before = signal.signal(signal.SIGALRM, is_over)
    signal.alarm(int(min(_A_TEST, left)))
    # A short path: sockets are in it.
    with tempfile.TemporaryDirectory(prefix="sky-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("JUPYTER_SKY_HOME", folder)
        monkeypatch.setenv("IPYTHONDIR", f"{folder}/ipython")
        try:
            yield listed
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)


@pytest.fixture
def cluster(gpu: machine.GPUMachine) -> Iterator[Callable[..., Cells]]:
    """Starts clusters on the GPU and ends them."""
    started: list[Cells] = []

    def make(*args: Any, **kwargs: Any) -> Cells:
        started.append(start(*args, **kwargs))
        return started[-1]

    yield make
    for cells in started:
        cells.cluster.down()


@pytest.fixture
def cells(cluster: Callable[..., Cells]) -> Cells:
    """Return a cluster of one rank, which forms a group."""
    return cluster(1, framework=sky.plugins.torch(single_rank=True), procs_per_node=1)


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Check:
    """Keeps what a test has measured, for the table."""
    made = Check(request.node.name)
    request.node.user_properties.append(("measured", made.figures))
    return made
