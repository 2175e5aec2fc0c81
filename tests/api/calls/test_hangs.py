"""Calls whose ranks wait for each other too long say so by themselves, as cells do."""

from __future__ import annotations

import functools
import io
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls import single_runs
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.task import Task
from tests.installed import skip_without
from tests.waiting import PATIENCE


@sky.compute
def meet(go: Path) -> int:
    """Meet the other rank, which comes late."""
    import torch.distributed as dist

    while dist.get_rank() == 1 and not go.exists():
        time.sleep(0.01)
    dist.barrier()
    return dist.get_rank()


@sky.compute
def meet_and_yield(go: Path) -> Iterator[int]:
    yield meet.local(go)


@sky.compute
def meet_nobody() -> None:
    import torch.distributed as dist

    dist.barrier()


class _Heard(io.StringIO):
    """Standard error that calls a function once something was said there."""

    def __init__(self, pattern: str, then: Callable[[], object]) -> None:
        super().__init__()
        self._pattern = pattern
        self._then: Callable[[], object] | None = then

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._then and re.search(self._pattern, self.getvalue()):
            then, self._then = self._then, None
            then()
        return count


@pytest.fixture(scope="module")
def grouped() -> Iterator[sky.ComputePool]:
    skip_without("torch")
    with sky.ComputePool(nodes=2, plugins=[sky.plugins.torch()]) as pool:
        yield pool


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_runs, "Task", functools.partial(Task, hang_after=0.4))


def test_a_single_call_says_that_other_ranks_are_not_in_it(
    grouped: sky.ComputePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first call of a pool, before which no rank has run anything."""
    says = r"rank 0 waits in barrier .*; rank 1 is not part of this run; `jupyter sky where` in a t"
    heard = _Heard(says, lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "stderr", heard)
    with pytest.raises(Interrupted, match="rank 1 was not part of this run"):
        meet_nobody().with_timeout(PATIENCE) >> grouped
    assert re.search(says, heard.getvalue())


@pytest.mark.parametrize("function", [meet, meet_and_yield])
def test_a_call_says_which_rank_the_others_wait_for(
    grouped: sky.ComputePool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    function: Any,
) -> None:
    go = tmp_path / "go"
    says = r"rank 0 waits in barrier #\d+ \(test_hangs.py, line \d+\) for .*; rank 1 is at `time"
    heard = _Heard(says, go.touch)
    monkeypatch.setattr(sys, "stderr", heard)
    results = function(go).with_timeout(PATIENCE) @ grouped
    found = results if function is meet else [value for _, value in results]
    assert sorted(found) == [0, 1]
    assert re.search(says, heard.getvalue())
