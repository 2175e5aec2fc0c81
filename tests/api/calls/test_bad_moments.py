"""Calls that end at the worst moment take nothing with them that was for others."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.cluster.calls import call_run
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runs.task import Task
from tests.api.calls.test_calls import meet, of_notebook, wait_for, worker
from tests.conftest import shared_registry
from tests.waiting import PATIENCE, until


@sky.compute
def show_until_late() -> None:
    """Display without end; when the next call is read meanwhile, this one's time is over."""
    from IPython.display import display

    from jupyter_sky.node.rank.inbox import Inbox

    number = signal.SIGRTMAX - 2
    usual_sort, usual_handler = Inbox._sort, signal.getsignal(number)
    over = []

    def handle(signum: int, frame: Any) -> None:
        over.append(signum)
        usual_handler(signum, frame)  # type: ignore[operator, misc]

    def sort(inbox: Inbox, message: Any) -> None:
        while message["op"] == "tell" and not over:
            time.sleep(0.01)
        usual_sort(inbox, message)

    signal.signal(number, handle)
    inbox_class: Any = Inbox
    inbox_class._sort = sort
    try:
        while True:
            display("goes on")
            time.sleep(0.01)
    finally:
        inbox_class._sort = usual_sort


@sky.compute
def nap() -> None:
    time.sleep(0.1)


@sky.compute
def double(x: int) -> int:
    return 2 * x


def test_the_next_call_is_not_lost_when_the_time_of_one_that_displays_is_over(
    pool: sky.ComputePool,
) -> None:
    with worker(pool, Worker(buffer=1)):
        late = [show_until_late().with_timeout(2.0) > pool for _ in range(2)]
        others = [double(n) > pool for n in range(4)]
        assert all(isinstance(each.exception(PATIENCE), TimeoutError) for each in late)
        assert [each.result(PATIENCE) for each in others] == [0, 2, 4, 6]


@sky.compute
def make_reports_slow(seconds: float) -> None:
    """Let what describes errors on a rank take some time, in which others are forked."""
    from jupyter_sky.node.rank.ipython.shell import RankShell

    shell: Any = RankShell
    usual = vars(shell).get("_usual", shell.report)
    shell._usual = usual

    def report(self: Any, error: BaseException) -> Any:
        time.sleep(seconds)
        return usual(self, error)

    shell.report = report if seconds else usual


@sky.compute
def fail_or_last(for_ever: bool) -> None:
    if for_ever:
        time.sleep(PATIENCE)
    raise ValueError("not this one")


def test_calls_fail_in_processes_that_were_made_while_another_error_was_described(
    pool: sky.ComputePool,
) -> None:
    make_reports_slow(0.5) @ pool
    with worker(pool, Worker(concurrency=2, executor="process")):
        late = [fail_or_last(True).with_timeout(0.5) > pool for _ in range(4)]
        failing = [fail_or_last(False) > pool for _ in range(4)]
        assert all(isinstance(each.exception(PATIENCE), TimeoutError) for each in late)
        found = [each.exception(PATIENCE) for each in failing]
        assert [str(each) for each in found] == ["not this one"] * 4
    make_reports_slow(0.0) @ pool


SLOW_MODULE = """
import os
import time
from pathlib import Path

folder = Path({folder!r})
if {here} != os.getpid():
    (folder / "importing").touch()
    late = time.monotonic() + 1.0
    while not (folder / "forked").exists() and time.monotonic() < late:
        time.sleep(0.005)

class Thing:
    pass
"""


@sky.compute
def fork_during_import(folder: Path) -> None:
    """Let processes of calls be forked once a module is being imported, if it is soon."""
    from jupyter_sky.node.rank.calls import server

    usual = server.CallProcess

    def fork(*args: Any) -> Any:
        (folder / "forking").touch()
        late = time.monotonic() + 1.0
        while not (folder / "importing").exists() and time.monotonic() < late:
            time.sleep(0.005)
        return usual(*args)

    parts: Any = server
    parts.CallProcess = fork


@sky.compute
def import_in_process(folder: Path, name: str) -> str:
    (folder / "forked").touch()
    return importlib.import_module(name).__name__


def test_a_process_that_is_forked_while_names_import_a_module_can_import_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text(
        SLOW_MODULE.format(folder=str(tmp_path), here=os.getpid())
    )
    monkeypatch.syspath_prepend(tmp_path)
    two = Worker(concurrency=2, executor="process")
    source = "import slow_module\nthing = slow_module.Thing()\ndef use(): return str(type(thing))"
    with sky.ComputePool(nodes=1, worker=two) as pool:
        fork_during_import(tmp_path) @ pool
        calls = [import_in_process(tmp_path, "slow_module") > pool]
        wait_for(tmp_path / "forking")
        with of_notebook(source) as names:
            calls.append(sky.compute(names["use"])() > pool)
            found = [each.result(PATIENCE) for each in calls]
        assert found == ["slow_module", "<class 'slow_module.Thing'>"]
    del sys.modules["slow_module"]


class Word:
    """A string on ranks; something may happen the next time that it is pickled."""

    def __init__(self) -> None:
        self.before: Callable[[], object] | None = None

    def __reduce__(self) -> Any:
        before, self.before = self.before, None
        if before:
            before()
        return str, ("said",)


WAIT_AND_SAY = """
import os, signal, time

def say():
    return word

def wait_and_say(file, dies):
    file.with_suffix(".begun").touch()
    while not file.exists():
        time.sleep(0.01)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return say()
"""


def test_a_rank_that_comes_back_as_the_last_call_ends_gets_its_names_with_the_next(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook(WAIT_AND_SAY) as names:
        word = names["word"] = Word()
        say, wait_and_say = sky.compute(names["say"]), sky.compute(names["wait_and_say"])
        dying = wait_and_say(tmp_path / "dies", True).with_retries(0) > pool
        waiting = wait_and_say(tmp_path / "ends", False) > pool

        def end_last_call() -> None:
            (tmp_path / "ends").touch()
            assert waiting.result(PATIENCE) == "said"

        until((tmp_path / "ends.begun").exists)  # else it is its own names that are prepared
        word.before = end_last_call  # while the names are prepared for the rank that is new
        (tmp_path / "dies").touch()
        assert isinstance(dying.exception(PATIENCE), sky.RankLost)
        assert waiting.result(PATIENCE) == "said"
        assert say() @ pool == ["said", "said"]
        assert word.before is None


NOTE = """
import time

word = ""

def note(place, text):
    place.write_text(place.read_text() + text + word)

def begin_when_it_may(place):
    place.touch()
    while not place.with_name("may").exists():
        time.sleep(0.01)
"""


def test_calls_do_not_overtake_one_whose_names_are_pickled_again(
    workplace: Path, tmp_path: Path
) -> None:
    place = tmp_path / "order"
    with of_notebook(NOTE) as names, shared_registry(workplace), sky.ComputePool() as pool:
        word = names["word"] = Word()
        note, begin = sky.compute(names["note"]), sky.compute(names["begin_when_it_may"])
        first = begin(place) > pool
        until(place.exists)
        sync = pool.cluster._controller.sync

        def lose() -> None:  # something else, while names are pickled
            sync._losses += 1
            word.before = partial(time.sleep, 0.2)

        word.before = lose
        slow = note(place, "slow ") > pool
        quick = begin(tmp_path / "quick") > pool
        (tmp_path / "may").touch()
        for each in (first, slow, quick):
            each.result(PATIENCE)
        begun = [each.stat().st_mtime_ns for each in (place, tmp_path / "quick")]
        assert place.read_text() == "slow said" and begun == sorted(begun)
        assert word.before is None


LOSE_ALL_AND_ONE_AGAIN = """
import os, time

word = "said"

def run(number, folder):
    tries = len(list(folder.glob(f"{number} *")))
    (folder / f"{number} {tries}").touch()
    if tries == 0:  # in the first run all ranks are lost, and in the next one the first again
        while not (folder / "1 0").exists() or not (folder / "0 0").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    while not (folder / "1 1").exists():
        time.sleep(0.01)
    if number == 0 and tries == 1:
        os.kill(os.getpid(), 9)
    while not (folder / "0 2").exists():
        time.sleep(0.01)
    return word
"""


def test_a_rank_gets_its_names_that_is_lost_once_more_after_all_were(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook(LOSE_ALL_AND_ONE_AGAIN) as names:
        run = sky.compute(names["run"])
        both = sky.gather(run(0, tmp_path), run(1, tmp_path), retries=3)
        assert both >> pool == ("said", "said")


def enter(info: sky.InstanceInfo, folder: Path) -> Iterator[None]:
    """Let a rank begin only when it may."""
    if (folder / "waits").exists():
        (folder / "entered").touch()
        while (folder / "waits").exists():
            time.sleep(0.01)
    yield


def test_a_call_that_is_stopped_while_its_rank_restarts_is_not_taken_to_have_brought_its_names(
    workplace: Path, tmp_path: Path
) -> None:
    plugin = sky.Plugin("late", around_process=partial(enter, folder=tmp_path))
    with (
        of_notebook(WAIT_AND_SAY) as names,
        shared_registry(workplace),
        sky.ComputePool(plugins=[plugin]) as pool,
    ):
        word = names["word"] = Word()
        say, wait_and_say = sky.compute(names["say"]), sky.compute(names["wait_and_say"])
        (tmp_path / "waits").touch()
        dying = wait_and_say(tmp_path / "dies", True).with_retries(0) > pool
        # Before it is known what the next call brings, its rank is not known to be lost.
        word.before = (tmp_path / "dies").touch
        scheduler = pool.cluster._scheduler

        def stop() -> None:
            until((tmp_path / "entered").exists)
            until(lambda: any(not run.sent for run in scheduler._runs.values()))
            os.kill(os.getpid(), signal.SIGINT)

        with ThreadPoolExecutor() as threads:
            stopped = threads.submit(stop)
            with pytest.raises(Interrupted):
                say() >> pool
            stopped.result()
        assert isinstance(dying.exception(PATIENCE), sky.RankLost)
        (tmp_path / "waits").unlink()
        until(lambda: not scheduler._turn.locked())
        assert say() >> pool == "said"


@pytest.mark.parametrize("what", ["its names", "the call"])
def test_a_call_that_cannot_be_sent_for_any_reason_fails(
    pool: sky.ComputePool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    async def fail(*asked: Any) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    first = meet(tmp_path, "begun", 1) > pool
    until((tmp_path / "begun").exists)
    monkeypatch.setattr(call_run, "refresh" if what == "its names" else "tell_in_order", fail)
    second = double(1) > pool
    with pytest.raises(sky.SkyError, match="the call could not be sent: RuntimeError: dictionary"):
        second.result(PATIENCE)
    monkeypatch.undo()
    (tmp_path / "go").touch()
    first.result(PATIENCE)
    assert (double(2) > pool).result(PATIENCE) == 4


def test_a_pool_that_is_stopped_while_it_starts_says_so(tmp_path: Path) -> None:
    plugin = sky.Plugin("late", around_process=partial(enter, folder=tmp_path))
    (tmp_path / "waits").touch()

    def stop() -> None:
        until((tmp_path / "entered").exists)
        os.kill(os.getpid(), signal.SIGINT)

    pool = sky.ComputePool(name="slow", plugins=[plugin])
    with ThreadPoolExecutor() as threads:
        stopped = threads.submit(stop)
        with pytest.raises(Interrupted) as raised:
            pool.__enter__()
        stopped.result()
    assert raised.value._render_traceback_() == [
        "KeyboardInterrupt: the start of slow was stopped; nothing is left running."
    ]
    assert "slow" not in [row.name for row in registry.rows()]


def test_a_pool_that_is_given_more_and_more_calls_lets_another_notebook_begin() -> None:
    with sky.ComputePool(nodes=1, plugins=[]) as pool:
        row = registry.find(pool.cluster.name)
        assert row is not None
        other = Cluster.attach(row, pool.provider, pool.cluster.runtime_env)
        assert other is not None
        try:
            waits = other.run(Task((0,), code="pass"))
            calls = [nap() > pool, nap() > pool]
            calls[0].result(PATIENCE)
            waits.begin()
            end = time.monotonic() + PATIENCE
            while not waits.finished:  # there is always one that has not begun
                assert time.monotonic() < end, "it waits for ever"
                calls.append(nap() > pool)
                calls.pop(0).result(PATIENCE)
            waits.check()
            for call in calls:
                call.result(PATIENCE)
        finally:
            other.close()


def test_calls_that_are_submitted_while_a_cell_waits_share_the_run_behind_it(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    cluster, go = pool.cluster, tmp_path / "go"
    first = wait_for(go) > pool
    cell = cluster.run(Task(cluster.all_ranks, code="pass", title="pass"))
    cell.begin()
    futures = [double(n) > pool for n in range(10)]
    go.touch()
    assert [each.result(PATIENCE) for each in futures] == [2 * n for n in range(10)]
    assert first.result() == "go"
    cell.follow()
    until(lambda: cluster.ended_runs()[-1]["title"] == "double()")
    titles = [each["title"] for each in cluster.ended_runs()]
    assert titles[-3:] == ["wait_for()", "pass", "double()"]
