"""The guides of Skyward on calls: the same names, and the results that they promise.

Guides 2 (parallel execution), 13 (streaming), 14 (worker executors) and 21 (standalone workers);
with this provider, and less work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

import jupyter_sky as sky


@sky.function
def process_chunk(data: list[int]) -> int:
    return sum(data)


@sky.function
def multiply(x: int, y: int) -> int:
    return x * y


@sky.function
def factorial(n: int) -> int:
    result = 1
    for i in range(1, n + 1):
        result *= i
    return result


def test_parallel_execution(pool: sky.ComputePool) -> None:
    chunks = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert sky.gather(*[process_chunk(c) for c in chunks]) >> pool == (6, 15, 24)
    a, b = (multiply(2, 3) & multiply(4, 5)) >> pool
    assert (a, b) == (6, 20)
    s, p, f = (process_chunk([1, 2, 3]) & multiply(10, 20) & factorial(5)) >> pool
    assert (s, p, f) == (6, 200, 120)
    tasks = [process_chunk([i] * 1000) for i in range(5)]
    results = list(sky.gather(*tasks, stream=True) >> pool)
    assert sorted(results) == [0, 1000, 2000, 3000, 4000]


@sky.function
def fibonacci(n: int):  # type: ignore[no-untyped-def]
    a, b = 0, 1
    for i in range(n):
        yield a
        a, b = b, a + b

        if i > 1000:
            break


@sky.function
def running_mean(data: Iterator[float]) -> list[float]:
    total = 0.0
    means = []
    for i, x in enumerate(data, 1):
        total += x
        means.append(total / i)
    return means


@sky.function
def moving_average(data: Iterator[float], window: int = 3):  # type: ignore[no-untyped-def]
    buf: deque[float] = deque(maxlen=window)
    for x in data:
        buf.append(x)
        yield sum(buf) / len(buf)


def test_streaming(pool: sky.ComputePool) -> None:
    assert list(fibonacci(10) >> pool) == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    data = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    assert running_mean(data) >> pool == [1.0, 1.5, 2.0, 2.5, 3.0]
    data = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    averages = moving_average(data, window=3) >> pool
    assert list(averages) == [1.0, 1.5, 2.0, 3.0, 4.0, 5.0]


@sky.function
def cpu_burn(task_id: int) -> dict[str, Any]:
    start = monotonic()
    total = 0.0
    i = 0
    while monotonic() - start < 0.02:
        total += (i**0.5) * ((i + 1) ** 0.5)
        i += 1
    elapsed = monotonic() - start
    return {"task_id": task_id, "iterations": i, "elapsed": round(elapsed, 1)}


@pytest.mark.parametrize(
    "worker", [sky.Worker(concurrency=2), sky.Worker(concurrency=2, executor="process")]
)
def test_worker_executors(pool: sky.ComputePool, worker: sky.Worker) -> None:
    batches = pool._batches
    assert batches is not None
    before, batches._worker = batches._worker, worker
    try:
        results = sky.gather(*(cpu_burn(i) for i in range(8)), stream=True)
        found = [r["task_id"] for r in (results >> pool)]
    finally:
        batches._worker = before
    assert sorted(found) == list(range(8))


@sky.function
def process_numbered_chunk(chunk_id: int) -> dict[str, Any]:
    info = sky.instance_info()
    assert info is not None
    return {"chunk_id": chunk_id, "node": info.node}


def test_standalone_workers(pool: sky.ComputePool) -> None:
    results = sky.gather(*(process_numbered_chunk(i) for i in range(8))) >> pool
    assert [r["chunk_id"] for r in results] == list(range(8))
    assert {r["node"] for r in results} <= {0, 1}
