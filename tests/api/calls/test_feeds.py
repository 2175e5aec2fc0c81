"""Iterators as arguments of calls that go to whichever rank is free."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.worker import Worker
from tests.api.calls.test_calls import PICKY, hold, of_notebook, rank_pids, wait_for, worker
from tests.waiting import PATIENCE, until


@sky.compute
def total(data: Iterator[float]) -> float:
    return sum(data)


@sky.compute
def halves(data: Iterator[int]) -> Iterator[float]:
    for each in data:
        yield each / 2


@sky.compute
def first_of(data: Iterator[Any], folder: Path) -> int:
    """Use one item, and no other until there is a file."""
    next(data)
    (folder / f"begun {os.getpid()}").touch()
    wait_for.local(folder / "go")
    return 1 + sum(1 for _ in data)


@sky.compute
def take(data: Iterator[int], most: int | None, fails: bool = False) -> int:
    """Use all items on rank 0, and some on others."""
    first = sky.instance_info().rank == 0
    taken = sum(1 for _ in (data if first else itertools.islice(data, most)))
    if fails and not first:
        raise ValueError("no more")
    return taken


@sky.compute
def die_once_at(data: Iterator[int], at: int, marker: Path) -> list[int]:
    seen = []
    for each in data:
        if each == at and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(each)
    return seen


@sky.compute
def read_all(data: Iterator[int], folder: Path) -> str:
    try:
        (folder / "begun").touch()
        for _ in data:
            pass
    except BaseException as error:
        (folder / "ended").write_text(type(error).__name__)
        raise
    (folder / "ended").write_text("all of it")
    return "all of it"


class Source:
    """Counts the items that were taken from it."""

    def __init__(self, size: int) -> None:
        self.taken = 0
        self._item = np.ones(size)

    def __iter__(self) -> Iterator[Any]:
        while self.taken < 100:
            self.taken += 1
            yield self._item


EVERY_WAY = [
    Worker(),
    Worker(buffer=2),
    Worker(concurrency=3),
    Worker(concurrency=3, executor="process"),
    Worker(executor="process"),
]


@pytest.mark.parametrize("way", EVERY_WAY, ids=lambda way: f"{way.executor}-{way.concurrency}")
def test_each_call_has_its_own_iterators(pool: sky.ComputePool, way: Worker) -> None:
    with worker(pool, way):
        calls = [total(iter(range(n))) for n in range(0, 60, 9)]
        assert sky.gather(*calls) >> pool == tuple(sum(range(n)) for n in range(0, 60, 9))
        assert pool.map(total, [range(40), [1, 2]]) == [780, 3]
        assert pool.map(halves, [iter([1, 2]), iter(())]) == [[0.5, 1.0], []]


def test_a_rank_that_has_finished_does_not_keep_the_others_from_their_items(
    pool: sky.ComputePool,
) -> None:
    assert take(iter(range(50)), 2) @ pool == [50, 2]
    assert take(iter(range(50)), 0) @ pool == [50, 0]
    with pytest.raises(ValueError, match="no more"):
        take(iter(range(50)), 2, fails=True) @ pool
    with of_notebook(PICKY) as names:
        for _ in range(2):
            with pytest.raises(ValueError, match="not here"):
                take(iter([names["use"]]), 1) @ pool


def test_a_process_whose_call_gets_no_more_items_answers_the_next_call(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook(PICKY) as names, worker(pool, Worker(executor="process")):
        held = hold(tmp_path) > pool  # on rank 0
        until((tmp_path / "begun").exists)
        refused = total(iter([names["use"]])) > pool  # on rank 1
        others = [total(iter(range(n))) > pool for n in range(3)]
        assert str(refused.exception(PATIENCE)) == "not here"
        assert [each.result(PATIENCE) for each in others] == [0, 0, 1]
        (tmp_path / "now").touch()
        held.result(PATIENCE)


def test_an_iterator_is_not_read_ahead_of_its_rank(pool: sky.ComputePool, tmp_path: Path) -> None:
    sources = [Source(500_000), Source(500_000)]  # 4 MB each
    stream = sky.gather(*(first_of(iter(each), tmp_path) for each in sources), stream=True) >> pool

    def let_go() -> None:
        until(lambda: len(list(tmp_path.glob("begun *"))) == 2)
        taken.extend(each.taken for each in sources)
        (tmp_path / "go").touch()

    taken: list[int] = []
    thread = threading.Thread(target=let_go)
    thread.start()
    assert list(stream) == [100, 100]
    thread.join()
    assert max(taken) <= 4  # 16 MB of the 400


def test_slow_iterators_do_not_keep_each_other_waiting(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    def second() -> Iterator[int]:
        yield 1
        until((tmp_path / "begun").exists)  # by the first of the other call's items
        yield 2

    def touch(data: Iterator[int]) -> int:
        count = 0
        for _ in data:
            (tmp_path / "begun").touch()
            count += 1
        return count

    assert pool.map(touch, [iter(range(40)), second()]) == [40, 2]


@dataclass
class Reading:
    value: float


@pytest.mark.parametrize("way", EVERY_WAY[2:4], ids=lambda way: way.executor)
def test_items_can_be_objects_of_the_notebook(pool: sky.ComputePool, way: Worker) -> None:
    def add(data: Iterator[Reading]) -> float:
        return sum(each.value for each in data)

    with worker(pool, way):
        found = pool.map(add, [(Reading(n / 2) for n in range(9)), iter([Reading(2)])])
    assert found == [18, 2]


def test_a_future_is_fed_too(pool: sky.ComputePool) -> None:
    source: queue.SimpleQueue[int] = queue.SimpleQueue()
    fed = total(iter(source.get, 0)) > pool
    other = total([1, 2]) > pool  # type: ignore[arg-type]
    assert other.result() == 3  # though the first waits for items that are not there yet
    for number in (5, 6, 0):
        source.put(number)
    assert fed.result() == 11


def test_one_that_is_cancelled_is_ended(pool: sky.ComputePool, tmp_path: Path) -> None:
    source: queue.SimpleQueue[int] = queue.SimpleQueue()
    fed = read_all(iter(source.get, 0), tmp_path) > pool
    until((tmp_path / "begun").exists)
    assert fed.cancel()
    until((tmp_path / "ended").exists)
    assert (tmp_path / "ended").read_text() != "all of it"
    source.put(0)
    assert pool.map(total, [[1]]) == [1]


# What goes wrong


@pytest.mark.parametrize("way", EVERY_WAY[:1] + EVERY_WAY[2:4], ids=lambda way: way.executor)
def test_leaving_early_ends_the_calls(pool: sky.ComputePool, tmp_path: Path, way: Worker) -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    with worker(pool, way):
        stream = sky.gather(total([1]), read_all(endless(), tmp_path), stream=True) >> pool
        assert next(stream) == 1
        until((tmp_path / "begun").exists)
        stream.close()
        until(lambda: (tmp_path / "ended").exists() or way.executor == "process")
        assert not (tmp_path / "ended").exists() or (tmp_path / "ended").read_text() != "all of it"
        assert pool.map(total, [[1], [2]]) == [1, 2]


def test_a_call_of_others_goes_on_when_one_is_left(pool: sky.ComputePool, tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()

    def endless() -> Iterator[int]:
        while True:
            yield 1

    other = wait_for(tmp_path / "go") > pool
    stream = sky.gather(total([1]), read_all(endless(), tmp_path / "left"), stream=True) >> pool
    assert next(stream) == 1
    until((tmp_path / "left" / "begun").exists)
    stream.close()
    ended = tmp_path / "left" / "ended"
    until(lambda: ended.exists() and ended.read_text())
    assert ended.read_text() == "KeyboardInterrupt"
    assert pool.map(total, [[1], [2]]) == [1, 2]
    (tmp_path / "go").touch()
    assert other.result() == "go"


def test_an_error_of_an_iterator_is_raised_here(pool: sky.ComputePool) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        pool.map(total, [broken(), [1, 2]])
    with pytest.raises(OSError, match="the disk is gone"):
        (total(broken()) > pool).result()
    assert pool.map(total, [[1]]) == [1]


def test_an_iterator_that_can_begin_again_does_when_a_rank_is_lost(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    numbers = list(range(30))
    call = die_once_at(numbers, 25, tmp_path / "died")  # type: ignore[arg-type]
    assert (call & total([1])) >> pool == (numbers, 1)  # type: ignore[arg-type]
    call = die_once_at(iter(numbers), 25, tmp_path / "died again")
    with pytest.raises(sky.RemoteError, match="is lost") as caught:
        (call & total([1])) >> pool  # type: ignore[arg-type]
    error: Any = caught.value
    assert error.index == 0
    assert rank_pids(pool)


def test_iterators_begin_again_when_all_ranks_are_lost(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    numbers = list(range(30))
    calls = [die_once_at(numbers, at, tmp_path / str(at)) for at in (5, 25)]  # type: ignore[arg-type]
    futures = [call > pool for call in calls]
    assert [each.result(PATIENCE) for each in futures] == [numbers, numbers]


def test_a_call_that_waits_for_items_has_a_time_out(pool: sky.ComputePool, tmp_path: Path) -> None:
    def slow() -> Iterator[int]:
        yield 1
        time.sleep(0.2)
        while True:
            yield 1

    # A time-out in the middle of an import would leave half of numpy, which comes with this file.
    assert total([1]) @ pool == [1, 1]  # type: ignore[arg-type]
    for way in EVERY_WAY:
        with worker(pool, way), pytest.raises(TimeoutError):
            pool.map(total, [slow()], timeout=0.1)
    assert pool.map(total, [[1]]) == [1]


def test_a_call_inside_of_an_iterator_is_refused(pool: sky.ComputePool) -> None:
    def nested() -> Iterator[float]:
        yield pool.map(total, [[1]])[0]

    with pytest.raises(sky.UsageError, match="a stream of this pool is not over"):
        pool.map(total, [nested()])
    assert pool.map(total, [[1]]) == [1]
