"""Calls that go to whichever rank is free: gather, &, map, futures."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import errno
import gc
import io
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.cluster.additions.mounts import Mounts
from tests.waiting import PATIENCE, until


@sky.compute
def double(x: int) -> int:
    return 2 * x


@sky.compute
def join(a: str, b: str = "") -> str:
    return a + b


@sky.compute
def total(*more: int) -> int:
    return sum(more)


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    @sky.compute
    def get(self) -> int:
        return 1


@sky.compute
def rank() -> int:
    info = sky.instance_info()
    assert info is not None
    return info.rank


@sky.compute
def meet(folder: Path, name: str, others: int) -> int:
    """Return the rank, when so many others have come here too."""
    (folder / name).touch()
    while len(list(folder.iterdir())) <= others:
        time.sleep(0.005)
    return rank.local()


@sky.compute
def fail_on(bad: int, x: int) -> int:
    if x == bad:
        raise ValueError(f"not {x}")
    return x


@sky.compute
def interrupt_itself_on(bad: int, x: int) -> int:
    if x == bad:
        raise KeyboardInterrupt
    return x


@sky.compute
def fail_at_length_on(bad: int, x: int) -> None:
    if x == bad:
        raise ValueError([["very long" * 2_000] * 100] * 45)


@sky.compute
def fail_together() -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for each in (ValueError("one"), OSError(2, "two"), KeyError(3)):
                group.create_task(fail(each))

    asyncio.run(main())


@sky.compute
def die_once(marker: Path, x: int) -> int:
    if x == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


@sky.compute
def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.005)
    return path.name


def test_results_come_in_the_order_of_the_calls(pool: sky.ComputePool) -> None:
    assert sky.gather(*(double(n) for n in range(20))) >> pool == tuple(range(0, 40, 2))
    assert sky.gather() >> pool == ()


def test_calls_of_different_functions_give_a_tuple(pool: sky.ComputePool) -> None:
    assert (double(4) & join("a", b="b")) >> pool == (8, "ab")
    assert (double(4) & join("a") & double(1)) >> pool == (8, "a", 2)


def test_calls_run_on_all_ranks_at_once(pool: sky.ComputePool, tmp_path: Path) -> None:
    found = (meet(tmp_path, "one", 1) & meet(tmp_path, "other", 1)) >> pool
    assert sorted(found) == [0, 1]


def test_the_next_call_goes_to_the_rank_that_is_free(pool: sky.ComputePool, tmp_path: Path) -> None:
    long = wait_for(tmp_path / "now")
    stream = sky.gather(long, *(rank() for _ in range(6)), stream=True) >> pool
    ranks = [next(stream) for _ in range(6)]
    assert len(set(ranks)) == 1  # the other was busy all the time
    (tmp_path / "now").touch()
    assert list(stream) == ["now"]


def test_a_stream_can_keep_the_order(pool: sky.ComputePool) -> None:
    stream = sky.gather(*(double(n) for n in range(9)), stream=True, ordered=True) >> pool
    assert list(stream) == list(range(0, 18, 2))


def test_a_future_has_the_result_later(pool: sky.ComputePool) -> None:
    first, second = double(1) > pool, join("x") > pool
    assert isinstance(first, concurrent.futures.Future)
    assert concurrent.futures.wait([first, second]).not_done == set()
    assert (first.result(), second.result()) == (2, "x")
    failed = fail_on(1, 1) > pool
    with pytest.raises(ValueError, match="not 1"):
        failed.result()


def test_a_future_whose_output_nobody_reads_fails_and_others_do_not_wait_for_ever(
    pool: sky.ComputePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `python train.py | head -1`."""

    @sky.compute
    def chat() -> None:
        print("unread", flush=True)
        while True:
            time.sleep(0.01)

    class Unread(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Unread())
    with pytest.raises(BrokenPipeError):
        (chat() > pool).result(PATIENCE)
    assert [(double(n) > pool).result(PATIENCE) for n in range(3)] == [0, 2, 4]


def test_futures_that_are_asked_for_at_once_run_at_once(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    futures = [meet(tmp_path, str(n), 1) > pool for n in range(2)]
    assert sorted(future.result(60) for future in futures) == [0, 1]


def test_a_future_can_be_awaited(pool: sky.ComputePool) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(double(1) > pool, join("x") > pool)

    assert asyncio.run(both()) == [2, "x"]


def test_one_that_is_not_done_when_its_pool_ends_says_so(tmp_path: Path) -> None:
    with sky.ComputePool(nodes=1) as pool:
        done, cancelled = double(1) > pool, wait_for(tmp_path / "begun") > pool
        assert done.result() == 2
        cancelled.cancel()
        runs, waits = (wait_for(tmp_path / "never") > pool for _ in range(2))
        fed = sky.compute(sum)(iter(int, 1)) > pool
    for future in (runs, waits, fed):
        with pytest.raises(sky.SkyError, match="the pool ended before this call was done"):
            future.result(PATIENCE)
    assert cancelled.cancelled()
    assert done.result() == 2


def test_a_pool_ends_its_nodes_also_where_stop_ends_what_comes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_back(mounts: Mounts) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Mounts, "write_back", write_back)
    with pytest.raises(KeyboardInterrupt), sky.ComputePool(nodes=1) as pool:
        cluster = pool.cluster
    assert cluster.state.phase == "down"


def test_one_that_waits_can_be_cancelled(pool: sky.ComputePool, tmp_path: Path) -> None:
    running = [wait_for(tmp_path / "now") > pool for _ in range(2)]
    waiting = double(1) > pool
    last = double(2) > pool
    assert waiting.cancel()
    (tmp_path / "now").touch()
    assert last.result() == 4
    assert [future.result() for future in running] == ["now", "now"]
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()


def test_what_ranks_print_is_shown(
    pool: sky.ComputePool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.map(print, ["one", "two"])
    assert sorted(capsys.readouterr().out.split()) == ["one", "two"]


def test_threads_can_share_a_pool(pool: sky.ComputePool) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda start: pool.map(double, range(start, start + 9)), range(4))
    assert list(found) == [[2 * n for n in range(start, start + 9)] for start in range(4)]


# Errors


def test_a_call_that_fails_says_which_one_it_is(pool: sky.ComputePool) -> None:
    with pytest.raises(ValueError, match="not 2") as caught:
        sky.gather(*(fail_on(2, n) for n in range(5))) >> pool
    error: Any = caught.value
    assert error.index == 2
    assert "in call 3 of 5: fail_on(2, 2)" in error.__notes__
    assert "in call 3 of 5: fail_on(2, 2)" in error._render_traceback_()
    assert "fail_on" in error.remote_traceback
    assert double(1) >> pool == 2


def test_the_error_of_a_function_without_a_file_shows_no_line_that_it_has_not(
    pool: sky.ComputePool,
) -> None:
    """As of ``python -c``, and of what reaches Python through a pipe."""
    names: dict[str, Any] = {}
    exec(compile("def fail(n):\n    return 1 / n", "<stdin>", "exec"), names)
    with pytest.raises(ZeroDivisionError) as raised:
        sky.compute(names["fail"])(0) >> pool
    shown = str(raised.value.__cause__)
    assert "File <stdin>:2, in fail(n)\n" in shown
    assert "Could not get source" not in shown
    assert "ZeroDivisionError: division by zero" in shown


def test_a_recursion_without_end_in_a_call_is_shown_as_python_shows_it(
    pool: sky.ComputePool,
) -> None:
    @sky.compute
    def again(n: int) -> int:
        return deeper(n)

    def deeper(n: int) -> int:
        return deeper(n + 1)

    with pytest.raises(RecursionError) as caught:
        again(0) >> pool
    lines = caught.value.remote_traceback.splitlines()  # type: ignore[attr-defined]
    assert "    return deeper(n)" in lines[:4]
    assert "  [Previous line repeated 9" in lines[-2]


def test_a_call_without_a_next_item_does_not_end_what_waits_for_it(pool: sky.ComputePool) -> None:
    first = sky.compute(lambda items: next(iter(items)))

    async def wait() -> object:
        return await (first([]) > pool)

    with pytest.raises(sky.RemoteError):
        asyncio.run(wait())
    with pytest.raises(sky.RemoteError, match="in call 2") as caught:
        sky.gather(first([1]), first([])) >> pool
    assert (type(caught.value).__name__, caught.value.index) == ("StopIteration", 1)


def test_a_done_callback_may_wait_for_further_calls(pool: sky.ComputePool, tmp_path: Path) -> None:
    """As with the executors of the standard library: the next step of a pipeline, for example."""
    got: queue.SimpleQueue[object] = queue.SimpleQueue()

    def wait_again(second: concurrent.futures.Future[int]) -> None:
        got.put((double(second.result()) > pool).result())

    def wait(first: concurrent.futures.Future[int]) -> None:
        second = double(first.result()) > pool
        second.add_done_callback(wait_again)
        got.put(second.result())
        endless = meet(tmp_path, "alone", 1) > pool
        try:
            endless.result(timeout=0.01)
        except TimeoutError as error:
            got.put(error)
        got.put(endless.cancel())

    (double(1) > pool).add_done_callback(wait)
    seen = [got.get(timeout=PATIENCE) for _ in range(4)]
    assert {4, 8, True} < {*seen} and sum(isinstance(each, TimeoutError) for each in seen) == 1


def test_a_call_whose_rank_is_lost_is_tried_again(pool: sky.ComputePool, tmp_path: Path) -> None:
    calls = [die_once(tmp_path / "died", n) for n in range(4)]
    assert sky.gather(*calls) >> pool == (0, 1, 2, 3)
    with pytest.raises(sky.RankLost, match="is lost") as caught:
        sky.gather(*(die_once(tmp_path / "again", n) for n in range(4)), retries=0) >> pool
    error: Any = caught.value
    assert error.index == 1
    assert pool.map(double, range(3)) == [0, 2, 4]


def test_a_call_on_one_rank_is_tried_again_as_often_as_it_says(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    assert die_once(tmp_path / "died", 1).with_retries(1) >> pool == 1

    def count(items: Iterator[int], marker: Path) -> int:
        found = list(items)
        if not marker.exists():
            marker.touch()
            os._exit(9)
        return len(found)

    call = sky.compute(retries=1)(count)
    assert call([1, 2], tmp_path / "list") >> pool == 2  # an iterable gives its items once more
    with pytest.raises(sky.RemoteError, match="is lost"):
        call(iter([1, 2]), tmp_path / "iterator") >> pool
    with pytest.raises(sky.RemoteError, match="is lost"):
        die_once(tmp_path / "again", 1) >> pool  # which says nothing of it


def test_a_rank_that_was_lost_takes_calls_again(pool: sky.ComputePool, tmp_path: Path) -> None:
    said = "a name that only the notebook has"
    (tmp_path / "met").mkdir()

    def call(name: str) -> tuple[int, str]:
        if name == "dies" and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return meet.local(tmp_path / "met", name, 1), said

    # The other rank is busy until the call that is tried again has begun elsewhere.
    found = pool.map(call, ["waits", "dies"], timeout=60)
    assert sorted(found) == [(0, said), (1, said)]
    assert pool.map(double, range(9)) == list(range(0, 18, 2))
    assert rank() @ pool == [0, 1]


@sky.compute
def hold(folder: Path, argument: object = None) -> None:
    """Keep a rank busy until it may end."""
    (folder / "begun").touch()
    wait_for.local(folder / "now")


@contextlib.contextmanager
def of_notebook(source: str) -> Iterator[dict[str, Any]]:
    """Define names as a cell of the notebook does."""
    main = vars(sys.modules["__main__"])
    before = set(main)
    exec(source, main)
    try:
        yield main
    finally:
        for name in main.keys() - before:
            del main[name]


def test_names_reach_a_rank_also_if_only_others_had_a_call_that_needs_them(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook("word = ['said']\ndef say():\n    return word") as names:
        held = hold(tmp_path) > pool
        until((tmp_path / "begun").exists)
        assert (sky.compute(names["say"])() > pool).result(PATIENCE) == ["said"]
        (tmp_path / "now").touch()
        held.result(PATIENCE)
        assert sky.compute(names["say"])() @ pool == [["said"], ["said"]]


def test_a_name_that_the_notebook_deletes_between_calls_is_deleted_on_ranks(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook("word = ['said']\ndef say():\n    return word") as names:
        say = sky.compute(names["say"])
        assert say() @ pool == [["said"], ["said"]]
        held = hold(tmp_path) > pool
        until((tmp_path / "begun").exists)
        del names["word"]
        pool.cluster.sync.deleted(["word"])  # as IPython's hook reports it
        assert (double(1) > pool).result(PATIENCE) == 2
        (tmp_path / "now").touch()
        held.result(PATIENCE)
        with pytest.raises(NameError, match="'word' is not defined"):
            say() @ pool


@pytest.mark.parametrize("limit", [None, 3600.0])
def test_what_calls_needed_can_be_freed_when_they_are_done(
    pool: sky.ComputePool, tmp_path: Path, limit: float | None
) -> None:
    argument = numpy.zeros(2**18)
    source = "import numpy\nlarge = numpy.zeros(2**18)\ndef use():\n    return large.nbytes"
    with of_notebook(source) as names:
        held = hold(tmp_path, argument).with_timeout(limit) > pool
        until((tmp_path / "begun").exists)
        joined = sky.compute(names["use"])().with_timeout(limit) > pool
        assert joined.result(PATIENCE) == 2**21
        (tmp_path / "now").touch()
        held.result(PATIENCE)
        kept = weakref.ref(argument), weakref.ref(names["large"])
    del argument, names  # but for the futures, which a user may keep
    until(lambda: gc.collect() >= 0 and all(each() is None for each in kept))
    assert held.done() and joined.done()


PICKY = """
import time
def make():
    import jupyter_sky as sky
    if sky.instance_info().rank:
        raise ValueError("not here")
    return Picky()
class Picky:
    def __reduce__(self):
        return make, ()
picky = Picky()
def use(n):
    time.sleep(0.1)
    return n, type(picky).__name__
"""


def test_names_that_one_rank_cannot_make_do_not_hold_up_the_others(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook(PICKY) as names:
        use = sky.compute(names["use"])
        futures = [use(n) > pool for n in range(6)]
        failed = [future.exception(PATIENCE) for future in futures]
        assert {str(error) for error in failed if error} <= {"not here"}
        assert None in failed, "the other rank goes on"
        held = hold(tmp_path) > pool  # on rank 0
        until((tmp_path / "begun").exists)
        for n in range(2):  # on rank 1
            with pytest.raises(ValueError, match="not here"):
                (use(n) > pool).result(PATIENCE)
        (tmp_path / "now").touch()
        held.result(PATIENCE)
        with pytest.raises(ValueError, match="not here"):
            use(0) @ pool
    assert double(1) @ pool == [2, 2]


def test_calls_that_a_rank_has_in_advance_end_with_the_cause_too(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    with of_notebook(PICKY) as names:
        use = sky.compute(names["use"])
        with sky.ComputePool(nodes=2, plugins=[], worker=sky.Worker(buffer=2)) as pool:
            held = [hold(tmp_path / str(rank)) > pool for rank in range(2)]
            until(lambda: len(list(tmp_path.glob("*/begun"))) == 2)
            futures = [use(n) > pool for n in range(4)]
            until(lambda: pool.cluster.snapshot()["run"]["progress"]["count"] == "0/6")
            for rank in range(2):
                (tmp_path / str(rank) / "now").touch()
            failed = [str(future.exception(PATIENCE)) for future in [*held, *futures]]
            assert sorted(failed) == ["None"] * 4 + ["not here"] * 2


def test_what_calls_did_to_names_stays_when_later_ones_that_brought_others_are_stopped(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    source = """
import _thread
counted, other = [], "other"
def count():
    counted.append(1)
    return len(counted)
def interrupt():
    _thread.interrupt_main()
    while other:
        pass
"""
    with of_notebook(source) as names:
        count, interrupt = sky.compute(names["count"]), sky.compute(names["interrupt"])
        stream = sky.gather(count(), hold(tmp_path), stream=True) >> pool
        assert next(stream) == 1  # of rank 0
        with pytest.raises(sky.SkyError, match="the calls were stopped"):
            (interrupt() > pool).result(PATIENCE)
        stream.close()
        assert count() @ pool == [2, 1]


def test_a_call_whose_library_interrupts_its_rank_is_answered(pool: sky.ComputePool) -> None:
    def interrupt() -> None:
        _thread.interrupt_main()
        time.sleep(PATIENCE)

    with pytest.raises(sky.SkyError, match="the calls were stopped"):
        (sky.compute(interrupt)() > pool).result(PATIENCE)
    assert double(1) @ pool == [2, 2]


def test_a_rank_returns_with_the_whole_group_where_there_is_one(tmp_path: Path) -> None:
    def around(info: Any) -> Iterator[None]:
        os.environ["GROUP"] = str(info.generation)
        yield

    def call(name: str) -> tuple[int, str]:
        return meet.local(tmp_path / "met", name, 1), os.environ["GROUP"]

    (tmp_path / "met").mkdir()
    meeting = [sky.compute(call)(name) for name in ("one", "other")]
    calls = [die_once(tmp_path / "died", 1), wait_for(tmp_path / "now"), *meeting, double(1)]
    with sky.ComputePool(nodes=2, plugins=[sky.Plugin("group", around_app=around)]) as pool:
        stream = sky.gather(*calls, stream=True, ordered=True, timeout=60) >> pool
        state = pool.cluster.state
        until((tmp_path / "died").exists)
        until(lambda: any(rank.phase == "idle" for rank in pool.cluster.state.ranks))
        (tmp_path / "now").touch()
        found: list[Any] = list(stream)
        assert sorted(found[2:4]) == [(0, "2"), (1, "2")]
        assert (found[:2], found[4]) == ([1, "now"], 2)
        assert state.generation == 1


def test_calls_go_on_when_all_ranks_are_lost(pool: sky.ComputePool, tmp_path: Path) -> None:
    marks = [tmp_path / "0", tmp_path / "1"]
    assert pool.map(lambda mark: die_once.local(mark, 1), marks) == [1, 1]


def test_a_call_that_takes_too_long_is_stopped(pool: sky.ComputePool, tmp_path: Path) -> None:
    never = wait_for.local
    slow = sky.compute(timeout=0.05)(never)
    with pytest.raises(TimeoutError, match=r"longer than its 0\.05 s") as caught:
        (double(1) & slow(tmp_path / "never")) >> pool
    error: Any = caught.value
    assert error.index == 1
    with pytest.raises(TimeoutError, match="is over"):
        slow(tmp_path / "never") >> pool
    with pytest.raises(TimeoutError):
        (wait_for(tmp_path / "never").with_timeout(0.05) > pool).result()
    assert pool.map(double, [1]) == [2]


def test_a_call_in_the_place_of_its_result_is_refused(pool: sky.ComputePool) -> None:
    before = r"call that has not run: send it before, as in `double\(double\(…\) >> pool\)`"
    with pytest.raises(sky.UsageError, match=before):
        double(double(1)) >> pool
    with pytest.raises(sky.UsageError, match=r"as in `double\(\(…\) >> pool\)`"):
        _ = double(x=double(1) & double(2)) > pool
    with pytest.raises(sky.UsageError, match=r"is a future, .*`double\(future.result\(\)\)`"):
        sky.gather(double(double(1) > pool)) >> pool
    with pytest.raises(sky.UsageError, match=r"not PendingCompute: .*`pool.map\(train, items\)`"):
        pool.map(double(1), [1])
    assert double(double(1) >> pool) >> pool == 4


def test_what_cannot_be_sent_is_named(pool: sky.ComputePool) -> None:
    why = "cannot be sent to another process: it is a lock. Create"
    with pytest.raises(sky.UsageError, match=rf"^x, which 2: double\(<.* uses, {why} x inside"):
        sky.gather(double(1), double(threading.Lock())) >> pool  # type: ignore[arg-type]
    parts = [threading.Lock()]
    with pytest.raises(sky.UsageError, match=rf"^b\[0\], which join uses, {why} b inside the f"):
        join("", b=parts) >> pool  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match=rf"^more\[1\], which total uses, {why} more"):
        total(1, *parts) @ pool  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match=rf"^self\.lock, which get uses, {why} self in"):
        Locked().get() >> pool


def test_an_array_that_changes_before_it_is_sent_is_said_to_have_changed(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    busy = [wait_for(tmp_path / "go") > pool for _ in range(8)]  # more than ranks have in advance
    values: Any = numpy.ones(30_000)
    call = double(values) > pool
    values[:] = 2
    (tmp_path / "go").touch()
    with pytest.raises(sky.SkyError, match=r"^240 kB that a call needs were changed .* `values\.c"):
        call.result(PATIENCE)
    assert [each.result(PATIENCE) for each in busy] == ["go"] * 8
    assert ((double(values) > pool).result(PATIENCE) == 4).all()


def test_a_result_instead_of_a_call_is_explained() -> None:
    with pytest.raises(sky.UsageError, match="with the parentheses"):
        double(1) & 2  # type: ignore[operator]
    with pytest.raises(sky.UsageError, match="no call of a function"):
        sky.gather(1)  # type: ignore[arg-type]


def test_stop_ends_all(pool: sky.ComputePool, tmp_path: Path) -> None:
    def stop() -> None:
        wait_for.local(tmp_path / "0")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def touch_and_wait(n: int) -> None:
        (tmp_path / str(n)).touch()
        time.sleep(600)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="the others were stopped"):
        pool.map(touch_and_wait, range(8))
    thread.join()
    assert pool.map(double, [1]) == [2]
    assert not (tmp_path / "2").exists()


def test_stop_ends_all_of_which_some_return_when_interrupted(
    pool: sky.ComputePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = pool.cluster._scheduler.controller
    never_by_force = replace(controller.timeouts, stop=3600.0)
    monkeypatch.setattr(controller, "timeouts", never_by_force)

    def wait_and_return(n: int) -> None:
        (tmp_path / str(n)).touch()
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(600)

    def stop() -> None:
        wait_for.local(tmp_path / "0")
        wait_for.local(tmp_path / "1")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="the others were stopped"):
        pool.map(wait_and_return, range(8))  # of which each rank has the next one already
    thread.join()
    assert pool.map(double, [1, 2]) == [2, 4]
    assert not (tmp_path / "4").exists()


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def test_a_rank_cannot_answer_for_another(pool: sky.ComputePool, tmp_path: Path) -> None:
    def forge(folder: Path) -> int:
        from jupyter_sky.node.rank.worker import RankWorker
        from jupyter_sky.transport.protocol.events import Told

        found = meet.local(folder, f"rank {rank.local()}", 1)
        if found == 1:
            ranks = (each for each in gc.get_objects() if isinstance(each, RankWorker))
            worker = next(ranks)
            forged: Any = {"stream": pickle.dumps(Touch(folder / "opened")), "buffers": []}
            for number in (1, 3, 4):  # the first call is the other rank's, and there are only two
                worker._send_event(Told(1, worker._run or "", "value", number, forged))
            (folder / "forged").touch()
        wait_for.local(folder / "forged")
        return found

    assert pool.map(forge, [tmp_path, tmp_path]) == [0, 1]
    assert not (tmp_path / "opened").exists()


# Several at once on a rank


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_several_calls_at_once_on_a_rank(
    pool: sky.ComputePool, tmp_path: Path, executor: Any
) -> None:
    with worker(pool, Worker(concurrency=2, executor=executor)):
        ranks = sky.gather(*(meet(tmp_path, str(n), 3) for n in range(4))) >> pool
        assert sorted(ranks) == [0, 0, 1, 1]
        pids = set(pool.map(lambda n: os.getpid(), range(8)))
        assert len(pids) <= (2 if executor == "thread" else 4)
        with pytest.raises(ValueError, match="not 1"):
            pool.map(fail_on, [1, 1], [0, 1])
        with pytest.raises(TimeoutError):
            pool.map(wait_for, [tmp_path / "never"], timeout=0.05)
        assert pool.map(double, range(9)) == list(range(0, 18, 2))


@pytest.mark.parametrize(
    "way", [Worker(), Worker(concurrency=2), Worker(executor="process")], ids=str
)
def test_a_call_that_interrupts_itself_is_answered(pool: sky.ComputePool, way: Worker) -> None:
    with worker(pool, way):
        futures = [interrupt_itself_on(1, n) > pool for n in range(6)]
        errors = [future.exception(timeout=PATIENCE) for future in futures]
        assert [error is None for error in errors] == [n != 1 for n in range(6)]
        assert isinstance(errors[1], sky.RemoteError)
        assert errors[1].remote_traceback == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "way", [Worker(), Worker(concurrency=2), Worker(executor="process")], ids=str
)
def test_an_error_that_is_too_large_to_send_is_said_to_be(
    pool: sky.ComputePool, way: Worker
) -> None:
    with worker(pool, way):
        futures = [fail_at_length_on(1, n) > pool for n in range(6)]
        errors = [future.exception(timeout=PATIENCE) for future in futures]
        assert [error is None for error in errors] == [n != 1 for n in range(6)]
        said = "what came of it cannot be sent: a message of 81.1 MB is too large"
        assert str(errors[1]) == said


def test_a_call_whose_time_no_thread_can_watch_says_so(pool: sky.ComputePool) -> None:
    def forbid_next_timer() -> None:
        usual = threading.Timer.start

        def refuse(timer: threading.Timer) -> None:
            vars(threading)["Timer"].start = usual
            raise RuntimeError("can't start new thread")

        vars(threading)["Timer"].start = refuse

    _ = sky.compute(forbid_next_timer)() @ pool
    with worker(pool, Worker(concurrency=2)):
        futures = [double(n).with_timeout(PATIENCE) > pool for n in range(20)]
        errors = [error for future in futures if (error := future.exception(timeout=PATIENCE))]
    assert {str(error) for error in errors} == {"can't start new thread"}


def test_a_call_for_which_no_process_can_be_started_says_so(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    def forbid_next_fork() -> None:
        usual = os.fork

        def refuse() -> int:
            os.fork = usual
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        os.fork = refuse

    _ = sky.compute(forbid_next_fork)() @ pool
    with worker(pool, Worker(executor="process")):
        # What can be started waits, so that no rank is left without a call.
        futures = [wait_for(tmp_path / "now") > pool for _ in range(6)]
        until(lambda: sum(future.done() for future in futures) == 2)
        (tmp_path / "now").touch()
        errors = [future.exception(timeout=PATIENCE) for future in futures]
    failed = [str(error) for error in errors if error]
    assert len(failed) == 2 and len(set(failed)) == 2  # one of each rank, which then goes on
    assert all("could not start a process for the call" in each for each in failed)


def test_a_process_that_ends_takes_no_rank_with_it(pool: sky.ComputePool, tmp_path: Path) -> None:
    pids = rank_pids(pool)
    with worker(pool, Worker(executor="process")):
        calls = [die_once(tmp_path / "died", n) for n in range(4)]
        assert sky.gather(*calls) >> pool == (0, 1, 2, 3)
    assert rank_pids(pool) == pids


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (os.abort, "it was killed by SIGABRT"),
        (partial(os._exit, 7), "it exited with 7"),
    ],
    ids=["killed", "exited"],
)
def test_an_error_says_how_the_process_of_a_call_has_ended(
    pool: sky.ComputePool, end: Callable[[], object], reason: str
) -> None:
    with worker(pool, Worker(executor="process")), pytest.raises(sky.RankLost) as caught:
        sky.gather(double(1), sky.compute(end)()) >> pool
    assert str(caught.value).endswith(f"has ended: {reason}.")


def test_a_call_in_a_process_may_start_processes(pool: sky.ComputePool) -> None:
    def in_another(x: int) -> int:
        with multiprocessing.get_context("fork").Pool(1) as others:
            return others.map(double.local, [x])[0]

    with worker(pool, Worker(executor="process")):
        assert pool.map(in_another, [3]) == [6]


@pytest.mark.parametrize(
    "how", [Worker(), Worker(2, "thread"), Worker(1, "process")], ids=["", "thread", "process"]
)
def test_a_process_that_a_call_has_forked_answers_none(pool: sky.ComputePool, how: Worker) -> None:
    def fork_and_return(fails: bool) -> int:
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
        if not child and fails:
            raise ValueError("in the child")
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else -1

    pids = rank_pids(pool)
    with worker(pool, how):
        calls = [sky.compute(fork_and_return)(fails) > pool for fails in (True, False) * 3]
        assert [each.result(PATIENCE) for each in calls] == [1, 0] * 3
        assert [(double(n) > pool).result(PATIENCE) for n in range(4)] == [0, 2, 4, 6]
    assert rank_pids(pool) == pids


def test_each_process_draws_numbers_of_its_own(pool: sky.ComputePool, tmp_path: Path) -> None:
    def draw(folder: Path, name: str) -> float:
        meet.local(folder, name, 3)  # in a process each
        return float(numpy.random.rand())

    _ = sky.compute(numpy.random.rand)() @ pool  # the ranks have imported it before they fork
    with worker(pool, Worker(concurrency=2, executor="process")):
        calls = [sky.compute(draw)(tmp_path, str(n)) for n in range(4)]
        assert len(set(sky.gather(*calls) >> pool)) == 4


def test_a_pool_is_used_by_the_process_that_started_it(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE))  # both would wait for the other's answers
        try:
            with contextlib.ExitStack() as stack:
                stack.push(pool.__exit__)
                double(1) >> pool
        except BaseException as error:
            (tmp_path / "error").write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "belongs to the process that started it" in (tmp_path / "error").read_text()
    assert double(1) @ pool == [2, 2]


def test_arguments_of_a_worker_are_checked() -> None:
    counts = [{"concurrency": 0}, {"concurrency": "4"}, {"concurrency": 2.5}, {"buffer": -1}]
    for wrong in ({"executor": "fibre"}, *counts):
        with pytest.raises(sky.UsageError, match="Worker"):
            Worker(**wrong)  # type: ignore[arg-type]


def test_limits_of_a_call_are_checked() -> None:
    limits: list[dict[str, Any]] = [{"timeout": "1"}, {"timeout": 0}, {"retries": "1"}]
    for wrong in (*limits, {"retries": -1}, {"retries": 0.5}):
        with pytest.raises(sky.UsageError, match=r"(timeout|retries)=.*: give"):
            sky.compute(**wrong)


@contextlib.contextmanager
def worker(pool: sky.ComputePool, wanted: Worker) -> Iterator[None]:
    """Let a shared pool carry out calls in another way."""
    batches = pool._batches
    assert batches is not None
    batches._worker = wanted
    yield
    batches._worker = Worker()


def rank_pids(pool: sky.ComputePool) -> list[int]:
    return sky.compute(os.getpid)() @ pool


@pytest.mark.parametrize("together", [False, True])
def test_the_errors_of_a_group_are_handled_one_by_one(
    pool: sky.ComputePool, together: bool
) -> None:
    handled: list[Any] = []
    with pytest.raises(ExceptionGroup) as caught:
        try:
            (sky.gather(fail_together()) if together else fail_together()) >> pool
        except* ValueError as group:
            handled += group.exceptions
        except* OSError as group:
            handled += group.exceptions
    assert [(type(each).__name__, each.args) for each in handled] == [
        ("ValueError", ("one",)),
        ("FileNotFoundError", (2, "two")),
    ]
    [left] = caught.value.exceptions
    assert isinstance(left, KeyError)
    assert isinstance(left, sky.RemoteError)
