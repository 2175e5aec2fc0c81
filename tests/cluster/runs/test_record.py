"""The record of a run: what each rank did in it, and that it stays as it was."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from tqdm import tqdm

from jupyter_sky.api.prompts.prompter import Prompter
from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.runs.progress_bars import find_progress
from jupyter_sky.cluster.runs.task import Attempt, Task
from tests.waiting import until


def snapshot(cells: Any) -> Any:
    return cells.cluster.snapshot()


def ranks(cells: Any, field: str) -> list[Any]:
    return [rank[field] for rank in snapshot(cells)["ranks"]]


def test_a_run_that_ended_keeps_its_rows_and_last_lines(cells) -> None:
    cells.run("print('loss', rank)", show=(0,))
    first = snapshot(cells)
    assert first["run"]["state"] == "ok" and first["run"]["shown"] == [0]
    assert [rank["outcome"] for rank in first["ranks"]] == ["ok"] * 4
    assert [rank["line"] for rank in first["ranks"]] == [f"loss {rank}" for rank in range(4)]
    others = cells.cluster.snapshot(run=first["run"]["id"])["others"]
    assert others == [{"rank": rank, "text": f"loss {rank}\n"} for rank in (1, 2, 3)]
    with pytest.raises(ZeroDivisionError):
        cells.run("1 / 0")
    again = cells.cluster.snapshot(run=first["run"]["id"])
    assert again["run"] == first["run"]
    assert [rank["line"] for rank in again["ranks"]] == [f"loss {rank}" for rank in range(4)]
    assert [rank["seconds"] for rank in again["ranks"]] == [
        rank["seconds"] for rank in first["ranks"]
    ]
    assert again["others"] == others


def test_what_a_rank_printed_is_not_lost_behind_its_progress_bar(cells) -> None:
    code = (
        "print('of rank', rank)\n"
        "for step in range(401):\n    print(f'\\rsteps: {step:>60}/400', end='')\nprint()"
    )
    cells.run(code, show=(0,))
    run = snapshot(cells)["run"]["id"]
    others = cells.cluster.snapshot(run=run)["others"]
    assert others == [
        {"rank": rank, "text": f"of rank {rank}\nsteps: {400:>60}/400\n"} for rank in (1, 2, 3)
    ]


def test_the_rank_that_failed_differs_from_those_released_because_of_it(cells) -> None:
    with pytest.raises(ValueError):
        cells.run("if rank == 2:\n    raise ValueError('no data\\nhere')\ndist.barrier()")
    assert ranks(cells, "outcome") == ["released", "released", "error", "released"]
    assert ranks(cells, "error")[2] == "ValueError: no data"
    run = snapshot(cells)["run"]["id"]
    others = cells.cluster.snapshot(run=run)["others"]
    [tail] = [each["text"] for each in others if each["rank"] == 2]
    assert "Traceback" in tail and tail.endswith("no data\nhere\n")
    log = cells.cluster.log(2, tail=100)
    assert log.data.decode().endswith(tail)


def test_of_a_group_of_errors_it_is_said_what_they_are(cells) -> None:
    with pytest.raises(RemoteError):
        cells.run(
            "raise ExceptionGroup('some', [KeyError('label'), OSError(f'shard-{rank}\\nhere')])",
            ranks=[0],
        )
    assert ranks(cells, "error")[0] == "KeyError: 'label'; OSError: shard-0"


def test_a_lost_rank_is_marked_until_the_next_run_has_ended(cells) -> None:
    cells.run("import os, signal")
    with pytest.raises(Exception, match="rank 1 is lost"):
        # Not by SIGKILL, which looks like a lack of memory if another test lacks it meanwhile.
        cells.run("if rank == 1:\n    os.kill(os.getpid(), signal.SIGTERM)\ndist.barrier()")
    assert ranks(cells, "outcome") == ["released", "lost", "released", "released"]
    assert "SIGTERM" in ranks(cells, "error")[1]
    assert ranks(cells, "restarted") == [False, True, False, False]
    cells.run("import os, time, torch, torch.distributed as dist\nrank = dist.get_rank()")
    assert ranks(cells, "restarted") == [False] * 4
    assert ranks(cells, "began_empty") == [False, True, False, False]


def test_a_further_attempt_begins_anew_by_design_and_is_not_marked(cells) -> None:
    cells.cluster.restart([2])
    code = "import os, time, torch, torch.distributed as dist\nrank = dist.get_rank()"
    again = Attempt(number=2, limit=2)
    cells.cluster.run(Task(cells.cluster.all_ranks, code=code, attempt=again)).follow()
    assert ranks(cells, "began_empty") == [False] * 4
    assert ranks(cells, "restarted") == [False] * 4
    cells.run("pass")
    assert ranks(cells, "began_empty") == [False] * 4


def test_a_rank_that_was_restarted_is_marked_in_the_next_run(cells) -> None:
    cells.cluster.restart([3])
    assert ranks(cells, "restarted") == [False, False, False, True]
    cells.run("import os, time, torch, torch.distributed as dist\nrank = dist.get_rank()")
    assert ranks(cells, "began_empty") == [False, False, False, True]
    assert ranks(cells, "restarted") == [False] * 4, "it has variables now"
    cells.run("pass")
    assert ranks(cells, "began_empty") == [False] * 4


def test_only_the_ranks_of_the_run_are_in_its_record(cells) -> None:
    cells.run("pass", ranks=(1, 3))
    run = snapshot(cells)["run"]["id"]
    assert [rank["rank"] for rank in cells.cluster.snapshot(run=run)["ranks"]] == [1, 3]
    assert ranks(cells, "rank") == [0, 1, 2, 3]


def test_a_bar_of_the_head_is_the_progress_of_the_run(cells) -> None:
    bar = "\\r  {0}%|###   | {0}/100 [00:12<00:15,  3.6it/s]"
    cells.run(
        "import sys\n"
        f"for part in (10, 100): sys.stderr.write('{bar}'.format(part))\n"
        "sys.stderr.write('\\n')",
        show=(0,),
    )
    done = {"label": "", "part": 1.0, "count": "100/100", "left": None}
    assert snapshot(cells)["run"]["progress"] == done
    assert ranks(cells, "progress") == [done] * 4


def test_a_full_bar_of_the_head_is_not_the_progress_of_ranks_that_go_on(cells) -> None:
    bar = "\\r 100%|###   | 100/100 [00:12<00:00,  3.6it/s]"
    run = cells.start(f"print('{bar}')\nif rank: time.sleep(600)", show=(0,))
    try:
        until(lambda: ranks(cells, "outcome") == ["ok", None, None, None])
        assert snapshot(cells)["run"]["progress"] is None
        assert ranks(cells, "progress")[0]["part"] == 1
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()
    assert snapshot(cells)["run"]["progress"]["part"] == 1


def test_the_output_of_a_rank_in_a_run_has_none_of_the_run_before(cells) -> None:
    cells.run("print('former', rank)", show=(0,))
    run = cells.start("print('present' if rank == 1 else '', end='')\ntime.sleep(600)", show=(0,))

    def output(rank: int) -> Any:
        return cells.cluster.snapshot(rank, run.id)["output"]

    try:
        until(lambda: output(1)["text"] == "present")
        assert output(2) == {"rank": 2, "text": ""}
        assert cells.cluster.snapshot(1)["output"]["text"] == "present"
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()


@pytest.mark.parametrize(
    ("text", "part", "count", "left", "label"),
    [
        ("\r 45%|████▌     | 45/100 [00:12<01:15,  3.6it/s]", 0.45, "45/100", 75, ""),
        ("\rtrain: 45%|### | 45/100 [00:12<?, ?it/s]", 0.45, "45/100", None, "train"),
        ("\rread:  50%|###| 1.20G/2.40G [00:12<00:15, 3MB/s]", 0.5, "1.20G/2.40G", 15, "read"),
        (
            "\x1b[32mWorking... \x1b[35m━━━━━━━╸\x1b[0m━━━━  45% 0:00:12",
            0.45,
            "45 %",
            12,
            "Working...",
        ),
        (
            "\x1b[1m 12/100\x1b[0m \x1b[32m━━━━━\x1b[37m━━━━━\x1b[0m \x1b[1m8s\x1b[0m 95ms/step",
            0.12,
            "12/100",
            8,
            "",
        ),
    ],
)
def test_bars_of_every_kind_are_read(
    text: str, part: float, count: str, left: float | None, label: str
) -> None:
    found = find_progress(text)
    assert found == {"label": label, "part": part, "count": count, "left": left}


def test_of_nested_bars_the_outer_one_counts() -> None:
    text = "\router: 20%|## | 2/10 [00:10<00:40, 5s/it]\n\rinner: 90%|## | 9/10 [00:01<00:00]\x1b[A"
    found = find_progress(text)
    assert found and found["label"] == "outer"
    assert find_progress("loss 0.3 | 45/100 [a<b]") is None


@pytest.mark.parametrize(
    "text",
    [
        "n" * 57 + ": " + " 50%|▌| 50/100 [00:30<00:",  # as tqdm cuts it off at 85 columns
        f"5%|#| {'9' * 400}/{'9' * 500} [00:01<{'9' * 400}:00",
        f"{'9' * 5000}/1 ━━━━━━ {'9' * 5000}s",
        f"a ━━━━━━ 50% {'9' * 5000}:00:00",
        f"{' ' * 100_000}━{' ' * 100_000}━━━━━━{' ' * 100_000}",  # as in a table
    ],
)
def test_what_looks_like_a_bar_harms_nothing(text: str) -> None:
    find_progress(text)


def test_tqdm_cuts_a_bar_off_at_any_width() -> None:
    for width in range(100):
        meter = tqdm.format_meter(50, 100, 30, ncols=width, prefix="loss")
        found = find_progress(meter)
        assert not found or (found["part"] == 0.5 and found["left"] in (30, None))


def test_a_cell_ends_that_leaves_a_bar_which_is_cut_off(cells) -> None:
    """Until then its end was never told."""
    cells.run("print(' 50%|▌| 50/100 [00:30<00:')", show=(0,))
    assert [run["state"] for run in cells.cluster.ended_runs()][-1] == "ok"


def followed(cells: Any, is_over: bool) -> list[weakref.ref[Any]]:
    """Follow a run, which may be over before; return what would keep its values."""
    run = cells.start("x = list(range(1000))", values={0: ["x"]})
    until(lambda: run.finished or not is_over)
    prompter = Prompter(run)
    run.follow(ask=prompter)
    run.values()
    return [weakref.ref(run._run), weakref.ref(prompter)]


@pytest.mark.parametrize("is_over", [False, True])
def test_what_a_run_gave_back_is_not_kept(cells, is_over: bool) -> None:
    gc.disable()  # it would be let go of at once, and not when cycles are collected
    try:
        kept = followed(cells, is_over)
        # The user's thread goes on a moment before the loop is done with it.
        until(lambda: not any(each() for each in kept))
    finally:
        gc.enable()
    assert snapshot(cells)["run"]["state"] == "ok"


def test_each_rank_shows_the_outer_one_of_nested_bars(cells) -> None:
    batches = f"print('\\n\\rbatches:  50%|{'#' * 50}| 5/10 [00:05<00:05]\\x1b[A', end='')\n"
    code = (
        "print('\\repochs:  25%|##| 1/4 [00:10<00:30]', end='')\n"
        f"for step in range(200):\n    {batches}"
        "time.sleep(600)"
    )
    run = cells.start(code, show=(0,))
    counts = [("epochs", "1/4")] * 4

    def shown() -> list[tuple[str, str]]:
        bars = [rank["progress"] for rank in snapshot(cells)["ranks"]]
        return [(bar["label"], bar["count"]) for bar in bars if bar]

    try:
        until(lambda: shown() == counts)
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()


def test_a_run_that_never_had_its_turn_shows_nothing_of_the_one_that_had(cells) -> None:
    running = cells.start("print('of another', flush=True)\ntime.sleep(600)")
    until(lambda: ranks(cells, "phase") == ["running"] * 4)
    waiting = cells.start("print('never')")
    waiting.stop()
    until(lambda: waiting.finished)
    record = cells.cluster.snapshot(run=waiting.id)
    assert record["run"]["state"] == "interrupted"
    # For the next one who opens the notebook, they would still run.
    assert [(rank["phase"], rank["line"]) for rank in record["ranks"]] == [("idle", "")] * 4
    assert ranks(cells, "phase") == ["running"] * 4
    running.stop()
    until(lambda: running.finished)
