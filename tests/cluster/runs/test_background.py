"""Runs in the background: they take turns, can be asked after, awaited and stopped."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, TimedOut
from jupyter_sky.cluster.inventory import owed_runs, registry
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.panel.manager import NoStrip
from jupyter_sky.providers.local import Local
from jupyter_sky.transport import event_loop
from tests.waiting import PATIENCE


def start(cells, code: str, names=(), timeout: float | None = None, **options) -> BackgroundRun:
    run = cells.start(code, names=names, **options)
    made = BackgroundRun(run, "test", NoStrip(), lambda run, values: values, timeout)
    made.begin()
    return made


def test_the_result_comes_when_it_is_asked_for(cells) -> None:
    handle = start(cells, "y = rank + 1\nprint('worked')", values={2: ["y"]})
    assert handle.result() == {2: {"y": 3}}
    assert handle.done
    assert handle.output == "worked\n"
    assert repr(handle).startswith("<test: done after")


def test_one_whose_time_is_over_before_its_turn_does_not_wait_for_it(cells) -> None:
    """As a further part or attempt does: the time of all of them counts, together."""
    before = start(cells, "time.sleep(600)")
    is_over = threading.Event()
    late = cells.cluster.run(Task(cells.cluster.all_ranks, code="pass"))
    late.listen(lambda event: None, is_over.set, timeout=0.0)
    assert is_over.wait(PATIENCE)
    with pytest.raises(TimedOut, match="limit is over: the run was stopped before it began"):
        late.values()
    assert not before.done
    before.cancel()


def test_it_keeps_the_end_of_a_flood_and_says_what_is_left_out(cells) -> None:
    handle = start(cells, "print('x' * 5_000_000)\nprint('tail')", show=(0,))
    handle.result()
    # How many gaps there are, and what comes between them, is a matter of time.
    notice = r"\[… .*B not shown here: `%sky logs 0 --save FILE` has all of them …\]"
    assert re.search(rf"x\n{notice}\n(x+\n)?tail\n$", handle.output)
    assert 1024 < len(handle.output.encode()) < 65 * 1024


def test_what_a_program_draws_over_is_as_it_was_last(cells) -> None:
    code = (
        "import sys\n"
        "for epoch in range(2):\n"
        "    for step in range(3):\n"
        "        sys.stderr.write(f'\\r{step}/2'); sys.stderr.flush()\n"
        "    print(file=sys.stderr)\n"
        "    print('loss', epoch)\n"
        "print('end', end='')"
    )
    handle = start(cells, code, show=(0,))
    handle.result()
    assert handle.output == "2/2\nloss 0\n2/2\nloss 1\nend"


def test_lines_of_several_ranks_say_whose_they_are(cells) -> None:
    code = (
        "from IPython.display import display\n"
        "os.write(1, b'in ')\ndist.barrier()\nos.write(1, b'pieces\\n')\ndisplay(rank)"
    )
    handle = start(cells, code, show=(0, 1))
    handle.result()
    assert sorted(handle.output.splitlines()) == [
        "0 │ 0",
        "0 │ in pieces",
        "1 │ 1",
        "1 │ in pieces",
    ]


def test_what_is_cleared_is_gone(cells) -> None:
    code = (
        "from IPython.display import clear_output\n"
        "print('one')\nclear_output()\nprint('two')\nclear_output(wait=True)\nprint('three')"
    )
    handle = start(cells, code, show=(0,))
    handle.result()
    assert handle.output == "three\n"


def test_several_take_turns_in_order(cells, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cells.namespace.update(go=str(go), order=[])
    first = start(
        cells, "while not os.path.exists(go): time.sleep(0.01)\norder.append(1)", ["go", "order"]
    )
    second = start(cells, "order.append(2)", ["order"])
    third = start(cells, "order.append(3)", ["order"], values={0: ["order"]})
    assert not first.done
    assert "waiting for its turn" in repr(third)
    go.touch()
    # What a rank made of `order` is not overwritten by the runs that were sent meanwhile.
    assert third.result() == {0: {"order": [1, 2, 3]}}
    assert first.done
    assert second.done


def test_a_run_whose_data_takes_long_is_not_overtaken(cells) -> None:
    cells.namespace["data"] = bytes(40_000_000)
    first = cells.start("size = len(data)", names=["data"])
    second = cells.start("size = 1")
    for run in (first, second):
        run.follow()
        run.check()
    assert cells.ask("size") == [1] * 4


def test_who_waits_for_a_run_is_told_that_the_notebook_leaves_the_cluster(new) -> None:
    cells = new(nodes=1, framework=False)
    running = start(cells, "import time; time.sleep(600)")
    waiting = start(cells, "pass")
    cells.cluster.close(sky.SkyError("left"))
    for handle in (running, waiting):
        with pytest.raises(sky.SkyError, match="left"):
            handle.result(timeout=30)
    row = registry.find(cells.cluster.name)
    assert row is not None
    Cluster.remove(row, Local())


def test_data_leaves_before_the_notebook_goes_on(cells, tmp_path: Path) -> None:
    import numpy as np

    go = tmp_path / "go"
    cells.namespace.update(go=str(go), data=np.zeros(1_000_000))
    start(cells, "while not os.path.exists(go): time.sleep(0.01)", ["go"])
    handle = start(cells, "total = float(data.sum())", ["data"], values={0: ["total"]})
    cells.namespace["data"][:] = 1
    go.touch()
    assert handle.result() == {0: {"total": 0.0}}


def test_an_error_is_raised_where_the_result_is_asked_for(cells) -> None:
    handle = start(cells, "raise ValueError('in the background')")
    with pytest.raises(ValueError, match="in the background"):
        handle.result()
    assert "failed" in repr(handle)


def test_it_can_be_awaited(cells) -> None:
    handle = start(cells, "y = rank", values={1: ["y"]})

    async def ask() -> object:
        return await handle

    assert asyncio.run(ask()) == {1: {"y": 1}}


def test_one_that_runs_can_be_stopped(cells) -> None:
    handle = start(cells, "time.sleep(600)")
    handle.cancel()
    with pytest.raises(Interrupted):
        handle.result()
    assert cells.ask("rank") == [0, 1, 2, 3]


def test_one_that_waits_does_not_begin_when_it_is_stopped(cells, tmp_path: Path) -> None:
    go, mark = tmp_path / "go", tmp_path / "mark"
    cells.namespace.update(go=str(go), mark=str(mark))
    start(cells, "while not os.path.exists(go): time.sleep(0.01)", ["go"])
    handle = start(cells, "open(mark, 'w').close()", ["mark"])
    handle.cancel()
    with pytest.raises(Interrupted, match="before it began"):
        handle.result()
    go.touch()
    assert cells.ask("rank") == [0, 1, 2, 3]
    assert not mark.exists()


def test_time_that_is_over_stops_it(cells) -> None:
    handle = start(cells, "while True: pass", timeout=0.2)
    with pytest.raises((Interrupted, TimeoutError)):
        handle.result()
    assert cells.ask("rank") == [0, 1, 2, 3]


def test_the_time_that_it_waits_for_its_turn_is_not_counted(cells) -> None:
    # For longer than a machine may pause that has to run the second one within that time.
    start(cells, "time.sleep(4.5)")
    handle = start(cells, "y = rank", values={1: ["y"]}, timeout=4)
    assert handle.result() == {1: {"y": 1}}
    start(cells, "time.sleep(0.8)")
    run = cells.start("while True: time.sleep(0.01)")
    with pytest.raises(TimeoutError, match=r"time limit of 0\.5 s") as stopped:
        run.follow(timeout=0.5)
    # With the time that it has waited, it would have been stopped at once.
    [seconds] = re.findall(r"stopped after ([\d.]+) s", str(stopped.value))
    assert float(seconds) >= 0.5


def test_waiting_for_a_result_can_end_before_the_run(cells, tmp_path: Path) -> None:
    go = tmp_path / "go"
    cells.namespace["go"] = str(go)
    handle = start(cells, "while not os.path.exists(go): time.sleep(0.01)", ["go"])
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.05)
    go.touch()
    handle.result()


def test_a_cluster_that_ends_takes_its_runs_with_it_and_they_say_so(new) -> None:
    cells = new(nodes=2)
    running = start(cells, "import time\nwhile True: time.sleep(0.01)")
    waiting = start(cells, "print('never')")
    cells.cluster.down()
    for handle in (running, waiting):
        with pytest.raises(sky.ClusterLost):
            handle.result()
        assert handle.done
        assert "ended after" in repr(handle) and "was ended" in repr(handle)
    assert cells.cluster.snapshot()["run"]["state"] == "error"


def test_a_run_whose_next_part_cannot_begin_fails(cells) -> None:
    def next_part(ended: RunHandle) -> RunHandle:
        cannot_be_noted = cast(NamespaceUpdate, None)
        return cells.cluster.run(Task(ended.task.ranks, code="pass", update=cannot_be_noted))

    made = BackgroundRun(
        cells.start("pass"), "test", NoStrip(), lambda run, values: values, None, then=[next_part]
    )
    made.begin()
    with pytest.raises(AttributeError, match="NoneType"):
        made.result(PATIENCE)
    made.wait_until_begun(print)
    assert repr(made).startswith("<test: failed: 'NoneType' object")


def test_parts_follow_one_another_until_one_fails(cells) -> None:
    def part(code: str) -> Callable[[RunHandle], RunHandle]:
        return lambda ended: cells.start(code)

    then = [part("print('b')"), part("1 / 0"), part("print('never')")]
    first = cells.start("print('a')")
    made = BackgroundRun(first, "test", NoStrip(), lambda run, values: values, None, then=then)
    made.begin()
    with pytest.raises(ZeroDivisionError):
        made.result(PATIENCE)
    assert made.output == "a\nb\n" and made.has_next


def test_a_run_that_is_stopped_before_its_waiting_is_recorded_leaves_no_record(
    cells, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    first = cells.start(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)")
    ranks = cells.cluster.all_ranks
    update = cells.cluster.sync.update((), {}, ranks)
    second = cells.cluster.run(Task(ranks, code="pass", update=update, title="second"))
    scheduler, run = second._scheduler, second._run
    event_loop.call(lambda: (scheduler.start(run), scheduler.stop(run)))
    go.touch()
    first.follow()
    cells.run("pass")  # whose turn comes after that of the other
    titles = [found["title"] for _, found in owed_runs._records(cells.cluster.id)]
    assert "second" not in titles
