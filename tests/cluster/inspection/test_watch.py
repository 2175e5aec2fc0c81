"""Runs that hang say so by themselves, also in the error with which they end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import HangNotice, Task
from tests.cluster.conftest import Cells
from tests.waiting import PATIENCE, until

_WAIT = r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 3\) for \d+ s; "
_SLEEP = r"rank 2 is at `time.sleep\(\d+\)` \(the cell, line 2\)"
_STACKS = "; `jupyter sky where` in a terminal shows the stacks"
_BEFORE = (
    r"Before that, ranks 0-1, 3 waited in barrier #\d+ \(the cell, line 3\) for \d+ s; "
    r"rank 2 was at `time.sleep\(600\)` \(the cell, line 2\)"
)


def _start(cells: Cells, code: str, hang_after: float = 0.4) -> RunHandle:
    return cells.cluster.run(Task(cells.cluster.all_ranks, code=code, hang_after=hang_after))


def _is_all(text: str) -> bool:
    """Return whether all that wait are in it: a rank may come to the line later than others."""
    return re.fullmatch(_WAIT + _SLEEP + _STACKS, text) is not None


def test_the_cell_and_the_panel_say_where_ranks_wait(cells: Cells) -> None:
    run = _start(cells, "if rank == 2:\n    time.sleep(600)\ndist.barrier()")
    said: list[str] = []

    def is_shown() -> bool:
        view = cells.cluster.snapshot(run=run.id)["run"]
        shown = view["where"] if view and view["warns"] else None
        return re.fullmatch(_WAIT + _SLEEP + r"\.", shown or "") is not None

    def on_hang(notice: HangNotice) -> None:
        text = notice.text
        said.append(text)
        if _is_all(text):
            until(is_shown)
            cells.cluster.interrupt_run(run.id)

    run.follow(hang=on_hang)
    assert _is_all(said[-1]), said
    over = cells.cluster.snapshot(run=run.id)["run"]
    assert over and over["where"] is None, "nobody waits any longer"


def test_they_say_that_ranks_have_gone_on(cells: Cells, tmp_path: Path) -> None:
    seen, end = tmp_path / "seen", tmp_path / "end"
    code = (
        f"while rank == 2 and not os.path.exists({str(seen)!r}):\n    time.sleep(0.01)\n"
        f"dist.barrier()\nwhile not os.path.exists({str(end)!r}):\n    time.sleep(0.01)"
    )
    run = _start(cells, code)
    said: list[str] = []
    shown: list[str | None] = []

    def on_hang(notice: HangNotice) -> None:
        text = notice.text
        said.append(text)
        seen.touch()
        if notice.is_over:
            view = cells.cluster.snapshot(run=run.id)["run"]
            shown.append(view["where"] if view else "")
            end.touch()

    run.follow(hang=on_hang)
    run.values()
    # Not all ranks come to a line, and leave it, at the same moment.
    gone_on = r"the ranks have gone on: ranks? [\d, -]+ waited in barrier #\d+ \(the cell, line 3\)"
    assert re.match(gone_on, said[-1]), said
    assert shown == [None]


def test_a_stopped_run_says_who_waited_for_whom(cells: Cells) -> None:
    run = _start(cells, "if rank == 2:\n    time.sleep(600)\ndist.barrier()")
    run.follow(hang=lambda notice: _is_all(notice.text) and cells.cluster.interrupt_run(run.id))
    with pytest.raises(Interrupted, match=_BEFORE):
        run.values()


def test_a_rank_that_runs_a_cell_alone_may_wait_for_the_others(cells: Cells) -> None:
    run = cells.cluster.run(Task((0,), code="dist.barrier()", hang_after=0.4))
    alone = r"rank 0 waits in barrier #\d+ \(the cell, line 1\) for \d+ s; ranks 1-3 are not"
    said: list[str] = []

    def on_hang(notice: HangNotice) -> None:
        said.append(notice.text)
        # Where the machine has no time for a rank, that is said of it at first.
        if re.match(alone, said[-1]):
            cells.cluster.interrupt_run(run.id)

    run.follow(timeout=PATIENCE, hang=on_hang)
    assert any(re.match(alone, text) for text in said), said


def test_a_collective_whose_time_is_over_says_it_too(cells: Cells) -> None:
    code = """dist.barrier()
import datetime
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=8))
if rank == 2:
    time.sleep(600)
dist.barrier()"""
    run = _start(cells, code)
    run.follow()
    with pytest.raises(RemoteError, match=r"(?i)timed out") as caught:
        run.values()
    # A rank that was asked between its error and the traceback of that is in no line any longer.
    assert re.match(
        r"Before that, "
        r"(ranks? [\d, -]+ waited in barrier #\d+( \(the cell, line 6\))? for \d+ s; )+"
        r"rank 2 was at `time.sleep\(600\)` \(the cell, line 5\)\.",
        caught.value.advice,
    )
    # What has failed is closed for good: the next run has another group.
    cells.run("dist.barrier()")


def test_a_rank_whose_error_takes_long_to_tell_has_waited_with_the_others(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As one from within torch does, whose traceback takes a second or more.
    fail, tell = tmp_path / "fail", tmp_path / "tell"
    code = f"""class Slow(Exception):
    def __str__(self):
        while not os.path.exists({str(tell)!r}):
            time.sleep(0.01)
        return "it has timed out"
if rank == 2:
    time.sleep(600)
work = dist.barrier(async_op=True)
while rank or not os.path.exists({str(fail)!r}): time.sleep(0.01)
raise Slow()"""
    run = _start(cells, code)
    run.begin()
    looked: list[Findings | None] = []
    on_where = run._run.on_where

    def spy(found: Findings | None, is_long: bool) -> None:
        looked.append(found)
        on_where(found, is_long)

    monkeypatch.setattr(run._run, "on_where", spy)
    said: list[str] = []

    def on_hang(notice: HangNotice) -> None:
        text = notice.text
        said.append(text)
        if text.startswith("ranks 0-1, 3 wait in barrier #"):
            fail.touch()
            until(lambda: "; rank 0 has failed; " in cells.cluster.where().sentence)
            before = len(looked)
            # The others are stopped after a second, and then nobody looks any more.
            until(lambda: len(looked) > before + 2 or run._run.is_ending)
            tell.touch()

    run.follow(hang=on_hang)
    with pytest.raises(RemoteError, match="it has timed out") as caught:
        run.values()
    # A rank that the machine has no time for at that moment does not answer.
    assert re.match(
        r"Before that, ranks 0-1, 3 waited in barrier #\d+ \(the cell, line 9\) for \d+ s; "
        r"rank 2 (was at `time.sleep\(600\)` \(the cell, line 7\)\.|did not answer: )",
        caught.value.advice,
    )
    assert not any("gone on" in text for text in said)


def test_ranks_that_work_are_left_alone(cells: Cells) -> None:
    code = """longest = 0
for _ in range(100):
    begun = time.monotonic()
    dist.barrier()
    longest = max(longest, time.monotonic() - begun)
    time.sleep(0.01)"""
    said: list[str] = []
    run = _start(cells, code)
    run.follow(hang=lambda notice: said.append(notice.text))
    run.values()
    # A machine that gives one of them no time for long lets the others wait indeed.
    assert said == [] or max(cells.ask("longest")) >= 0.4


def test_nothing_is_said_of_a_rank_that_only_computes(cells: Cells) -> None:
    run = _start(cells, "time.sleep(1)")
    said: list[str] = []
    run.follow(hang=lambda notice: said.append(notice.text))
    assert said == []
    until(lambda: run.finished)
