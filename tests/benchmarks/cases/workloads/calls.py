"""Calls of a pool: what a small one costs, and what memory a stream of large values takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jupyter_sky as sky
from tests.benchmarks.measure import Row, Target, spread

_CALLS = 2000
_VALUES = 300
_LARGE = 500_000  # doubles: 4 MB


def calls(peers: bool) -> list[Row]:
    """Many calls of nothing, and streams of nothing and of much."""
    with sky.ComputePool(nodes=4) as pool:
        pool.map(abs, range(50))
        each = [_per_call(pool) for _ in range(3)]
        values = [_timed(lambda: _drain(_count(_CALLS) >> pool)) / _CALLS for _ in range(3)]
        out_here, out_there = _grown(pool, lambda: _drain(_arrays(_VALUES) >> pool))
        in_here, in_there = _grown(pool, lambda: _total(_made(_VALUES)) >> pool)
    return [
        Row(
            f"{_CALLS:,} calls of nothing on 4 ranks, each, median of 3",
            1000 * statistics.median(each),
            "ms",
            Target(3),
            note=spread(each, "ms", 1000),
        ),
        Row(
            "a small value that a generator yields, median of 3",
            1000 * statistics.median(values),
            "ms",
            Target(3),
            note=spread(values, "ms", 1000),
        ),
        Row(
            f"memory of the notebook grows while {_VALUES} arrays of 4 MB are yielded",
            out_here,
            "MB",
            Target(64),
            note=f"of the rank: {out_there:.0f} MB",
        ),
        Row(
            f"memory of the notebook grows while {_VALUES} arrays of 4 MB are fed to a rank",
            in_here,
            "MB",
            Target(64),
            note=f"of the rank: {in_there:.0f} MB",
        ),
    ]


def _per_call(pool: sky.ComputePool) -> float:
    pending = [_nothing(number) for number in range(_CALLS)]
    return _timed(lambda: sky.gather(*pending) >> pool) / _CALLS


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _grown(pool: sky.ComputePool, work: Callable[[], object]) -> tuple[float, float]:
    """Return the megabytes that memory grows by here, and on the rank where it grows most."""
    _forget_peak()
    _forget(0) @ pool
    before, there = _memory("VmRSS"), _resident("VmRSS") @ pool
    work()
    after = _resident("VmHWM") @ pool
    grown = max(late - early for late, early in zip(after, there, strict=True))
    return _memory("VmHWM") - before, grown


def _memory(line: str) -> float:
    status = Path("/proc/self/status").read_text()
    return (
        next(int(each.split()[1]) for each in status.splitlines() if each.startswith(line)) / 1024
    )


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _drain(values: Iterator[Any]) -> None:
    for _ in values:
        pass


def _made(count: int) -> Iterator[Any]:
    for number in range(count):
        yield np.full(_LARGE, number, float)


@sky.compute
def _nothing(number: int) -> int:
    return number


@sky.compute
def _count(count: int) -> Iterator[int]:
    yield from range(count)


@sky.compute
def _arrays(count: int) -> Iterator[Any]:
    yield from _made(count)


@sky.compute
def _total(arrays: Iterator[Any]) -> float:
    return float(sum(each[0] for each in arrays))


@sky.compute
def _resident(line: str) -> float:
    return _memory(line)


@sky.compute
def _forget(number: int) -> None:
    _forget_peak()
