"""Calls that talk while they run: generators, and iterators as arguments."""

from __future__ import annotations

import functools
import io
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.runs.handle import RunHandle
from tests.waiting import PATIENCE, until


@sky.compute
def count(n: int) -> Iterator[int]:
    yield from range(n)


@sky.compute
async def count_slowly(n: int) -> AsyncIterator[int]:
    for each in range(n):
        yield each


@sky.compute
def running_mean(data: Iterator[float]) -> list[float]:
    total, means = 0.0, []
    for number, value in enumerate(data, 1):
        total += value
        means.append(total / number)
    return means


def positions(data: Iterator[int]) -> Iterator[int]:
    for number, _ in enumerate(data):
        yield number


async def later_positions(data: Iterator[int]) -> AsyncIterator[int]:
    for number, _ in enumerate(data):
        yield number


@sky.compute
def pairs(data: Iterator[int], others: Iterator[int]) -> Iterator[tuple[int, int]]:
    yield from zip(data, others, strict=False)


@sky.compute
def read(file: Any) -> Any:
    return file.read()


@sky.compute
def lines(file: Iterator[str]) -> list[str]:
    return list(file)


@sky.compute
def endless(folder: Path) -> Iterator[int]:
    number = 0
    try:
        while True:
            (folder / "made").write_text(str(number))
            yield number
            number += 1
    finally:
        (folder / "closed").touch()


@sky.compute
def fail_after(n: int) -> Iterator[int]:
    yield from range(n)
    raise ValueError("no more")


@sky.compute
def first_of(data: Iterator[int], go_on: Path) -> int:
    found = next(data)
    while not go_on.exists():
        time.sleep(0.005)
    return found


def test_values_arrive_from_one_rank_and_with_their_rank_from_all(pool: sky.ComputePool) -> None:
    assert list(count(40) >> pool) == list(range(40))
    assert list(count_slowly(3) >> pool) == [0, 1, 2]
    assert sorted(count(2) @ pool) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(count(0) >> pool) == []


def test_a_value_arrives_before_the_next_is_made(pool: sky.ComputePool, tmp_path: Path) -> None:
    @sky.compute
    def two(go_on: Path) -> Iterator[str]:
        yield "first"
        until(go_on.exists)
        yield "second"

    stream = two(tmp_path / "go") >> pool
    assert next(stream) == "first"
    (tmp_path / "go").touch()
    assert list(stream) == ["second"]
    stream = two(tmp_path / "never") >> pool
    assert next(stream) == "first"
    threading.Thread(target=stop_within, args=(RunHandle.events,)).start()
    with pytest.raises(KeyboardInterrupt, match="the stream was stopped after 1 value"):
        list(stream)


def stop_within(function: Callable[..., Any]) -> None:
    """Stop the main thread where it is within a function."""
    main = threading.main_thread().ident or 0

    def is_there() -> bool:
        stack = traceback.walk_stack(sys._current_frames()[main])
        return any(frame.f_code is function.__code__ for frame, _ in stack)

    until(is_there)
    signal.pthread_kill(main, signal.SIGINT)


def test_a_rank_does_not_run_ahead_of_who_reads(pool: sky.ComputePool, tmp_path: Path) -> None:
    for value in endless(tmp_path) >> pool:
        assert int((tmp_path / "made").read_text() or 0) <= value + 17
        if value == 60:
            break
    until((tmp_path / "closed").exists)


def test_large_values_are_few_at_a_time(pool: sky.ComputePool, tmp_path: Path) -> None:
    @sky.compute
    def arrays() -> Iterator[Any]:
        for number in range(8):
            (tmp_path / "made").write_text(str(number))
            yield np.full(500_000, number, float)  # 4 MB

    for number, array in enumerate(arrays() >> pool):
        assert array[-1] == number
        assert int((tmp_path / "made").read_text() or 0) <= number + 3


def test_who_leaves_early_ends_it_on_the_rank(pool: sky.ComputePool, tmp_path: Path) -> None:
    stream: Any = endless(tmp_path) >> pool
    assert next(stream) == 0
    stream.close()
    until((tmp_path / "closed").exists)
    assert list(stream) == []
    assert list(count(1) >> pool) == [0]


def test_one_that_never_yields_again_is_stopped(pool: sky.ComputePool, tmp_path: Path) -> None:
    @sky.compute
    def busy() -> Iterator[int]:
        try:
            yield 1
            time.sleep(600)
        finally:
            (tmp_path / "stopped").touch()

    for _ in busy() >> pool:
        break
    until((tmp_path / "stopped").exists)


def test_an_error_comes_after_the_values_before_it(pool: sky.ComputePool) -> None:
    stream = fail_after(3) >> pool
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no more"):
        next(stream)
    with pytest.raises(ValueError, match="no more"):
        list(fail_after(1) @ pool)


def test_an_iterator_is_fed_to_the_rank(pool: sky.ComputePool) -> None:
    assert running_mean(iter([1.0, 2.0, 3.0])) >> pool == [1.0, 1.5, 2.0]
    assert running_mean([1.0, 2.0]) @ pool == [[1.0, 1.5], [1.0, 1.5]]  # type: ignore[arg-type]
    assert running_mean(iter([])) >> pool == []
    both = pairs(iter(range(50)), others=(2 * n for n in range(50))) >> pool
    assert list(both) == [(n, 2 * n) for n in range(50)]


def test_a_file_in_memory_is_a_value(pool: sky.ComputePool) -> None:
    began = io.StringIO("one\ntwo\n")
    began.readline()
    assert read(io.BytesIO(b"abc")) >> pool == b"abc"
    assert pool.map(read, [began, io.BytesIO(b"")]) == ["two\n", b""]
    assert read(file=began) @ pool == ["two\n", "two\n"]
    assert (read(began) > pool).result(PATIENCE) == "two\n"
    assert lines(began) >> pool == ["two\n"]  # its parameter says that it is fed


def test_what_a_fed_function_returns_is_a_list_if_nobody_reads_a_stream(
    pool: sky.ComputePool,
) -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    same: Any = sky.compute(lambda items: items)
    functions = [same, *(sky.compute(decorated(each)) for each in (positions, later_positions))]
    for function in functions:
        for n in (3, 100):  # of which a rank sends only some ahead of who reads
            call = function(iter(range(n))).with_timeout(PATIENCE)
            assert call >> pool == list(range(n))
    assert same(iter("ab")) @ pool == [["a", "b"], ["a", "b"]]


def test_an_iterator_is_not_read_ahead_of_the_rank(pool: sky.ComputePool, tmp_path: Path) -> None:
    read = 0

    def numbers() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            (tmp_path / "go").touch()
            yield read

    assert first_of(numbers(), tmp_path / "go") >> pool == 1
    assert read <= 32


@dataclass
class Reading:
    value: float


def test_items_can_be_objects_and_arrays(pool: sky.ComputePool) -> None:
    @sky.compute
    def total(data: Iterator[Any]) -> float:
        return sum(each.value if isinstance(each, Reading) else each.sum() for each in data)

    large = (np.full(300_000, number, float) for number in range(4))
    assert total(large) >> pool == 6 * 300_000
    assert total(iter([Reading(1.5), Reading(2)])) >> pool == 3.5


def test_an_error_of_an_iterator_is_raised_here(pool: sky.ComputePool) -> None:
    def broken() -> Iterator[float]:
        yield 1.0
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        running_mean(broken()) >> pool
    assert list(count(1) >> pool) == [0]


def test_a_call_in_the_loop_over_a_stream_is_refused(pool: sky.ComputePool, tmp_path: Path) -> None:
    for _ in endless(tmp_path) >> pool:
        for again in (lambda: count(1) >> pool, lambda: pool.map(abs, [1])):
            with pytest.raises(sky.UsageError, match="a stream of this pool is not over"):
                again()
        break
    assert pool.map(abs, [-1]) == [1]


def fail_in(stream: Iterator[Any]) -> None:
    for _ in stream:
        raise ZeroDivisionError


def fail_in_a_list(stream: Iterator[Any]) -> None:
    [1 / 0 for _ in stream]


@pytest.mark.parametrize("fail", [fail_in, fail_in_a_list])
def test_a_stream_that_only_an_error_holds_does_not_keep_the_ranks(
    pool: sky.ComputePool, tmp_path: Path, fail: Callable[[Iterator[Any]], None]
) -> None:
    def begin_and_fail() -> None:
        stream = endless(tmp_path) >> pool
        fail(stream)

    with pytest.raises(ZeroDivisionError) as kept:  # as IPython keeps the last error
        begin_and_fail()
    assert list(count(1) >> pool) == [0]
    assert "stream" in kept.traceback[1].frame.f_locals  # it is still held
    until(lambda: (tmp_path / "closed").exists())

    stream = endless(tmp_path) >> pool
    with pytest.raises(ZeroDivisionError):
        fail(stream)
    with pytest.raises(sky.UsageError, match="a stream of this pool is not over"):
        count(1) >> pool
    assert next(stream) == 1  # who has it can still read it
    stream.close()
    assert list(count(1) >> pool) == [0]


def test_a_stream_has_a_time_out(pool: sky.ComputePool, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="the stream took longer"):
        for _ in endless(tmp_path).with_timeout(0.05) >> pool:
            pass
    # One that had not begun by then has nothing to close.
    until(lambda: (tmp_path / "closed").exists() or not (tmp_path / "made").exists())
