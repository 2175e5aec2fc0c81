"""Runs that hang say so by themselves, also in the error with which they end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from tests.cluster.conftest import Cells
from tests.waiting import until

_WAIT = r"ranks 0-1, 3 wait in barrier #\d+ \(the cell, line 3\) for \d+ s; "
_SLEEP = r"rank 2 is at `time.sleep\(\d+\)` \(the cell, line 2\)"
_BEFORE = (
    r"Before that, ranks 0-1, 3 waited in barrier #\d+ \(the cell, line 3\) for \d+ s; "
    r"rank 2 was at `time.sleep\(600\)` \(the cell, line 2\)"
)


def _start(cells: Cells, code: str, hang_after: float = 0.4) -> RunHandle:
    return cells.cluster.run(Task(cells.cluster.all_ranks, code=code, hang_after=hang_after))


def test_the_cell_and_the_panel_say_where_ranks_wait(cells: Cells) -> None:
    run = _start(cells, "if rank == 2:\n    time.sleep(600)\ndist.barrier()")
    said: list[str] = []
    shown: list[str | None] = []

    def on_hang(text: str) -> None:
        said.append(text)
        view = cells.cluster.snapshot(run=run.id)["run"]
        shown.append(view["where"] if view else None)
        cells.cluster.interrupt_run(run.id)

    run.follow(hang=on_hang)
    stacks = "; `jupyter sky where` in a terminal shows the stacks"
    assert re.fullmatch(_WAIT + _SLEEP + stacks, said[0])
    assert re.fullmatch(_WAIT + _SLEEP + r"\.", shown[0] or "")


def test_they_say_that_ranks_have_gone_on(cells: Cells, tmp_path: Path) -> None:
    seen, end = tmp_path / "seen", tmp_path / "end"
    code = (
        f"while rank == 2 and not os.path.exists({str(seen)!r}):\n    time.sleep(0.01)\n"
        f"dist.barrier()\nwhile not os.path.exists({str(end)!r}):\n    time.sleep(0.01)"
    )
    run = _start(cells, code)
    said: list[str] = []
    shown: list[str | None] = []

    def on_hang(text: str) -> None:
        said.append(text)
        seen.touch()
        if "gone on" in text:
            view = cells.cluster.snapshot(run=run.id)["run"]
            shown.append(view["where"] if view else "")
            end.touch()

    run.follow(hang=on_hang)
    run.values()
    assert said[-1].startswith("the ranks have gone on: ranks 0-1, 3 waited in barrier #")
    assert shown == [None]


def test_a_stopped_run_says_who_waited_for_whom(cells: Cells) -> None:
    run = _start(cells, "if rank == 2:\n    time.sleep(600)\ndist.barrier()")
    run.follow(hang=lambda text: cells.cluster.interrupt_run(run.id))
    with pytest.raises(Interrupted, match=_BEFORE):
        run.values()


def test_a_collective_whose_time_is_over_says_it_too(new: Callable[..., Cells]) -> None:
    cells = new(nodes=4)
    cells.run("import datetime, time, torch, torch.distributed as dist\nrank = dist.get_rank()")
    code = """dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2))
if rank == 2:
    time.sleep(600)
dist.barrier()"""
    run = _start(cells, code)
    run.follow()
    with pytest.raises(RemoteError, match=r"(?i)timed out") as caught:
        run.values()
    assert re.match(
        r"Before that, ranks 0-1, 3 waited in barrier #\d+ \(the cell, line 4\) for \d s; "
        r"rank 2 was at `time.sleep\(600\)` \(the cell, line 3\)\.",
        caught.value.advice,
    )


def test_ranks_that_work_are_left_alone(cells: Cells) -> None:
    said: list[str] = []
    run = _start(cells, "for _ in range(100):\n    dist.barrier()\n    time.sleep(0.01)")
    run.follow(hang=said.append)
    run.values()
    assert said == []


def test_nothing_is_said_of_a_rank_that_only_computes(cells: Cells) -> None:
    run = _start(cells, "time.sleep(1)")
    said: list[str] = []
    run.follow(hang=said.append)
    assert said == []
    until(lambda: run.finished)
