"""Stop, errors and large things at moments when they are easily got wrong."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, RankLost, TimedOut
from jupyter_sky.cluster.inventory import owed_runs, registry
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.sending import dispatch
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.panel.manager import NoStrip
from jupyter_sky.providers.local import Local
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.frames import Message
from tests.cluster.cells import PEERS, SUMMED, Cells
from tests.cluster.runs.test_stop import stop, stop_at, stop_at_first_line
from tests.waiting import PATIENCE, until


def in_background(run: RunHandle) -> BackgroundRun:
    made = BackgroundRun(run, "test", NoStrip(), lambda run, values: values, None)
    made.begin()
    return made


class Slow:
    """Takes its time to arrive; a rank that is stopped meanwhile lacks what came with it."""

    def __reduce__(self) -> tuple:
        return _arrive, ()


def _arrive() -> None:
    import time

    print("arriving", flush=True)
    time.sleep(600)


def test_a_name_that_did_not_arrive_is_sent_again(cells) -> None:
    cells.namespace.update(x=1)
    cells.run("pass", names=["x"])
    cells.namespace.update(x=2, a_slow=Slow())
    stop_at_first_line(cells.start("pass", names=["a_slow", "x"]))
    assert cells.ask("x", names=["x"]) == [2] * 4


@pytest.mark.parametrize("line", range(1, 9))
def test_stop_at_any_line_of_the_beginning(cells, line: int) -> None:
    """The trace counts lines of `RunHandle` from the moment when one is followed."""
    cells.namespace.update(x=1)
    cells.run("pass", names=["x"])
    cells.namespace.update(x=2)
    update = cells.cluster.sync.update(["x"], cells.namespace, cells.cluster.all_ranks)
    task = Task(cells.cluster.all_ranks, code="while True: time.sleep(0.01)", update=update)
    run = cells.cluster.run(task)
    lines = 0

    def trace(frame, event: str, arg: object):
        nonlocal lines
        if not frame.f_code.co_filename.endswith("runs/handle.py"):
            return None
        lines += event == "line"
        if lines == line and event == "line":
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    with pytest.raises(KeyboardInterrupt):
        sys.settrace(trace)
        try:
            run.follow(lambda event: None)
        finally:
            sys.settrace(None)
    assert cells.ask("x", names=["x"]) == [2] * 4


def test_a_name_that_cannot_be_made_there_says_so_every_time(cells) -> None:
    cells.namespace["bad"] = Unmakeable()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            cells.run("bad", names=["bad"])


class Unmakeable:
    def __reduce__(self) -> tuple:
        return open, ("/no/such/file",)


def test_a_run_that_was_stopped_before_its_turn_leaves_its_names_to_be_sent(
    cells, tmp_path
) -> None:
    cells.namespace.update(go=str(tmp_path / "go"), y="here")
    first = cells.start("while not os.path.exists(go): time.sleep(0.01)", names=["go"])
    waiting = in_background(cells.start("y", names=["y"]))
    waiting.cancel()
    (tmp_path / "go").touch()
    first.follow()
    assert cells.ask("y", names=["y"]) == ["here"] * 4


def test_a_run_that_is_stopped_while_it_is_recorded_is_not_sent(
    cells, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is sent, no rank is said to run it: Stop would be for a run on the ranks."""
    begins, goes_on, record = threading.Event(), threading.Event(), owed_runs.record

    def slow(*owed: Any) -> None:
        record(*owed)
        begins.set()
        assert goes_on.wait(PATIENCE)

    monkeypatch.setattr(owed_runs, "record", slow)
    asked = {rank: ["x"] for rank in range(4)}
    run = cells.start(f"x = open({str(tmp_path / 'ran')!r}, 'w')", values=asked)
    assert begins.wait(PATIENCE)
    assert not cells.cluster.state.busy_runs
    waiting = in_background(run)
    waiting.cancel()
    goes_on.set()
    with pytest.raises(KeyboardInterrupt, match="stopped before it began"):
        waiting.result()
    assert cells.ask("1") == [1] * 4
    assert not (tmp_path / "ran").exists()


def test_stop_leaves_time_to_save(cells, tmp_path) -> None:
    cells.namespace["file"] = str(tmp_path / "saved")
    cell = (
        "try:\n    print('here'); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    time.sleep(0.5); open(file, 'w').close()"
    )
    stop_at_first_line(cells.start(cell, names=["file"], ranks=[0]))
    cells.run("pass")
    assert (tmp_path / "saved").exists()


def test_stop_says_which_ranks_had_finished_before(cells) -> None:
    def interrupt(event: object) -> None:
        raise KeyboardInterrupt

    run = cells.start("v = 1; print('done')")
    until(lambda: run.finished)
    with pytest.raises(Interrupted) as stopped:
        run.follow(interrupt)
    sentence = r"ranks 0-3 had finished after \S+ s, before they could be stopped\."
    assert re.fullmatch(sentence, str(stopped.value))
    caught = "try:\n    print('here'); time.sleep(600)\nexcept KeyboardInterrupt:\n    pass"
    assert str(stop_at_first_line(cells.start(caught))).startswith("ranks 0-3 stopped after ")


def test_a_run_that_fails_just_before_its_time_is_over_is_no_run_that_others_have_stopped(
    cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Scheduler.stop

    def fail_and_stop(scheduler: Scheduler, run: Run) -> None:
        run.end(sky.SkyError("the node is gone."))
        stop(scheduler, run)

    monkeypatch.setattr(Scheduler, "stop", fail_and_stop)
    with pytest.raises(TimedOut) as caught:
        cells.start("time.sleep(600)").follow(timeout=0.2)
    assert "the node is gone" in str(caught.value)
    assert "not by this notebook" not in str(caught.value)


def test_stop_is_heard_after_an_error_was_shown_in_the_middle_of_a_cell(cells) -> None:
    cells.run("kept = 1")
    cell = "get_ipython().run_cell('1 / 0')\nprint('here')\nwhile True: time.sleep(0.1)"
    stop_at(cells.start(cell), b"here")
    assert "ZeroDivisionError" in cells.cluster.log(0, tail=50).data.decode()
    assert cells.ask("kept") == [1] * 4


def test_a_task_of_a_stopped_cell_ends_with_it(cells) -> None:
    loop = "for n in range(1000):\n    print('tick', n)\n    await asyncio.sleep(0.01)"
    stop(cells, f"import asyncio\n{loop}")
    cells.run("import asyncio\nawait asyncio.sleep(0.1)\nprint('mine')")
    assert cells.text() == "mine\n"


@pytest.mark.parametrize(
    "blocks", ["while True: time.sleep(0.1)", "dist.barrier() if rank else time.sleep(600)"]
)
def test_stop_is_heard_where_a_task_keeps_the_cell_from_beginning(cells, blocks: str) -> None:
    cells.run(
        "import asyncio\nkept = 1\n"
        f"async def block():\n    await asyncio.sleep(0)\n    {blocks}\n"
        "task = asyncio.create_task(block())"
    )
    run = cells.start("kept = 2")
    until(lambda: run.sent)
    cells.cluster.interrupt_run(run.id)
    run.follow(lambda event: None)
    with pytest.raises(Interrupted):
        run.check()
    assert cells.ask("(kept, task.done())") == [(1, True)] * 4
    assert cells.ask(SUMMED) == [4.0] * 4


@pytest.mark.parametrize(
    ("raising", "kind"),
    [
        ("raise ValueError('\\udcff')", ValueError),
        ("raise ValueError('x' * 30_000_000)", ValueError),
        ("raise ExceptionGroup('several', [ValueError(1)])", sky.RemoteError),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", sky.RemoteError),
    ],
)
def test_errors_that_are_hard_to_describe(cells, raising: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        cells.run(raising, ranks=[1])
    assert not isinstance(caught.value, RankLost)
    assert cells.ask("rank") == [0, 1, 2, 3]


def test_of_what_is_too_large_to_display_it_is_said(cells) -> None:
    cells.run(
        "from IPython.display import HTML, display\n"
        "display(HTML('x' * 70_000_000))\ndisplay('small')\nis_over = True",
        ranks=[1],
        show=[1],
    )
    large, small = (event.data["text/plain"] for event in cells.events)
    assert large == (
        "What rank 1 displays here cannot be sent (a message of 70 MB is too large): "
        "write it to a file there, and fetch that with `%sky get`."
    )
    assert small == "'small'"
    assert cells.ask("is_over", ranks=[1]) == [True]


def test_times_in_logs_are_of_the_notebook_s_clock(cells, monkeypatch) -> None:
    cells.run("print('told')", ranks=[1])
    for hours in (-1, 1):
        real = time.time
        with monkeypatch.context() as other:
            # As where that of the node is an hour ahead, or behind.
            other.setattr(time, "time", lambda real=real, hours=hours: real() + 3600 * hours)
            *_, last = cells.cluster.log(1, tail=1).entries()
            assert -1800 < last.time - time.time() < 1800


def test_many_small_arrays_are_no_large_message(cells) -> None:
    import numpy as np

    arrays = [np.full(3000, n, dtype=np.float64) for n in range(2500)]
    cells.namespace["arrays"] = arrays
    total = "sum(float(a[0]) for a in arrays)"
    assert cells.ask(total, names=["arrays"], ranks=[0, 1]) == [sum(range(2500))] * 2
    [back] = cells.ask("arrays", ranks=[1])
    assert [a[0] for a in back] == list(range(2500))


def test_a_forked_child_that_leaves_the_cell_is_no_second_rank(cells) -> None:
    [before] = cells.ask("os.getpid()", ranks=[2])
    cells.run("if os.fork() == 0: raise SystemExit", ranks=[2])
    assert {cells.ask("os.getpid()", ranks=[2])[0] for _ in range(4)} == {before}


def test_ranks_may_be_restarted_often(new) -> None:
    cells = new(nodes=1, framework=False)
    seen = set()
    for _ in range(5):
        seen.update(cells.ask("__import__('os').getpid()"))
        cells.cluster.restart()
    seen.update(cells.ask("__import__('os').getpid()"))
    assert len(seen) == 6


def test_a_run_whose_ranks_somebody_restarts_says_so(new) -> None:
    cells = new(nodes=1, framework=False)
    run = cells.start("import time\ntime.sleep(600)")
    until(lambda: cells.cluster.state.busy_runs)
    cells.cluster.restart()
    with pytest.raises(RankLost, match="rank 0 is lost: its process was ended on request, as by `"):
        run.check()


def test_a_run_that_waits_begins_once_all_ranks_are_new_that_somebody_restarts(
    new, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = new(nodes=2, provider=Local(machines=2), framework=False)
    controller = cells.cluster._controller
    connection = controller.connections[1]
    request, generation = connection.request, controller.state.generation

    def is_held_back() -> bool:
        is_as_it_was = controller.state.generation == generation
        return first.finished and controller.formation.lock.locked() and is_as_it_was

    async def request_later(op: str, **fields: Any) -> Message:
        while op == "kill" and fields["ranks"] and not (is_held_back() or waits.finished):
            await asyncio.sleep(0.01)  # as over a slower link
        return await request(op, **fields)

    monkeypatch.setattr(connection, "request", request_later)
    before = cells.ask("__import__('os').getpid()")
    first = cells.start("import time\ntime.sleep(600)", ranks=[0])
    waits = cells.start("pid = __import__('os').getpid()", values={0: ["pid"], 1: ["pid"]})
    until(lambda: cells.cluster.state.busy_runs)
    cells.cluster.restart()
    with pytest.raises(RankLost):
        first.check()
    waits.follow()
    assert not {found["pid"] for found in waits.values().values()}.intersection(before)


def test_a_cell_waits_for_ranks_that_another_notebook_is_restarting(
    new, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, now = tmp_path / "leaves", tmp_path / "now"

    def slow(info):
        yield
        leaves.touch()
        while not now.exists():
            time.sleep(0.01)

    async def counted(*about: Any) -> bool:
        asked.append(about)
        return await send(*about)

    asked, send = [], dispatch.send_once_whole
    cells = new(1, framework=sky.Plugin("slow", around_app=slow))
    [before] = cells.ask("__import__('os').getpid()")
    row = registry.find(cells.cluster.name)
    other = Cluster.attach(row, Local(), cells.cluster.runtime_env)
    monkeypatch.setattr(dispatch, "send_once_whole", counted)
    with ThreadPoolExecutor() as threads:
        restarting = threads.submit(other.restart)
        until(leaves.exists)
        waiting = threads.submit(cells.ask, "__import__('os').getpid()")
        until(lambda: len(asked) > 1 or waiting.done())
        now.touch()
        assert waiting.result() != [before]
        restarting.result()
    other.close()


def lose_just_before(
    cells: Cells, run: RunHandle, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill a rank and begin a run: the loop is held, and hears of the loss after it has sent it."""
    until(lambda: not cells.cluster._scheduler._turn.locked())  # else the run waits, and it hears
    forks = psutil.Process(lost).parent()
    ranks = len(forks.children())
    has_begun = threading.Event()

    def lose_and_begin() -> None:
        os.kill(lost, signal.SIGKILL)
        until(
            lambda: lost not in (pids := [e.pid for e in forks.children()]) and len(pids) == ranks
        )
        with monkeypatch.context() as at_once:
            at_once.setattr(event_loop, "call", lambda function, *args: function(*args))
            run.begin()
        has_begun.set()

    event_loop.call(lose_and_begin)
    assert has_begun.wait(PATIENCE)  # to follow it begins it, too


def test_a_cell_waits_for_a_rank_that_was_lost_just_before_it_was_sent(cells, monkeypatch) -> None:
    cells.run("kept = 1")
    cells.namespace["x"] = 1
    cells.run("pass", names=["x"])
    update = cells.cluster.sync.update(["x"], cells.namespace, cells.cluster.all_ranks)
    cell = f"told = kept if rank != 2 else x, {SUMMED}"
    cell = "import torch, torch.distributed as dist\nrank = dist.get_rank()\n" + cell
    values = {each: ["told"] for each in cells.cluster.all_ranks}
    run = cells.cluster.run(Task(cells.cluster.all_ranks, code=cell, update=update, values=values))
    [lost] = cells.ask("os.getpid()", ranks=[2])
    lose_just_before(cells, run, lost, monkeypatch)
    run.follow()
    assert [run.values()[each]["told"] for each in range(4)] == [(1, 4.0)] * 4


def test_a_cell_that_others_have_begun_says_which_rank_was_lost_before(new, monkeypatch) -> None:
    cells = new(nodes=4, provider=Local(machines=2), framework=False)
    cells.run("kept = 1")
    update = cells.cluster.sync.update([], {}, cells.cluster.all_ranks)
    cell = "import time\ntime.sleep(10)"
    run = cells.cluster.run(Task(cells.cluster.all_ranks, code=cell, update=update))
    [lost] = cells.ask("__import__('os').getpid()", ranks=[2])
    lose_just_before(cells, run, lost, monkeypatch)
    run.follow()
    with pytest.raises(RankLost, match="rank 2 is lost: it was killed .* restarts with an empty"):
        run.check()
    assert cells.ask("globals().get('kept')") == [1, 1, None, 1]
    assert cells.ask(PEERS) == [4] * 4


def test_a_cell_waits_for_a_head_that_is_lost_while_it_reserves_a_port(cells) -> None:
    head, other, *_ = cells.ask("os.getpid()")
    os.kill(head, signal.SIGSTOP)
    try:
        os.kill(other, signal.SIGKILL)
        until(lambda: not cells.cluster.state.group)
        run = cells.start("pass")
        until(cells.cluster._controller.formation.lock.locked)
        cells.cluster.log(0, tail=1)  # what was requested before was received before
    finally:
        os.kill(head, signal.SIGKILL)
    run.follow()
    run.check()
    assert cells.ask("__import__('torch').distributed.get_rank()") == [0, 1, 2, 3]


def test_who_stops_waiting_for_a_run_does_not_stop_it(cells, tmp_path) -> None:
    cells.namespace["go"] = str(tmp_path / "go")
    run = cells.start("while not os.path.exists(go): time.sleep(0.01)", names=["go"])
    handle = in_background(run)

    async def wait_a_little() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.05)

    asyncio.run(wait_a_little())
    (tmp_path / "go").touch()
    handle.result()
    assert cells.ask("rank") == [0, 1, 2, 3]


def test_a_handler_of_the_cell_is_not_the_next_cell_s(cells) -> None:
    cells.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    stop(cells, "while True: pass")
    assert cells.ask("rank") == [0, 1, 2, 3]


def test_a_run_that_is_stopped_while_its_names_are_sent_anew_lets_the_next_begin(
    cells, monkeypatch
) -> None:
    begun = threading.Event()
    send = broadcast.send

    async def take_long(blobs: Any, connections: Any, transfer: Any = None) -> None:
        if not transfer:  # what ranks need for a new group: Stop may have broken theirs
            await send(blobs, connections)
            return
        begun.set()
        await asyncio.sleep(600)

    cells.namespace["x"] = 1
    before = in_background(cells.start("time.sleep(600)"))
    waiting = in_background(cells.start("pass", names=["x"]))
    with monkeypatch.context() as patch:
        patch.setattr(broadcast, "send", take_long)
        before.cancel()  # later runs count on what it would have bound
        assert begun.wait(PATIENCE)
        waiting.cancel()
    run = cells.start("print(x)", names=["x"])
    until(lambda: run.finished)
    run.check()
