"""What ranks have shown in a cell, and what is shown again when one of them clears its output."""

from __future__ import annotations

from jupyter_sky.notebook.output.ranks.outputs import PATIENCE, RankOutputs
from jupyter_sky.transport.protocol.events import Display, Output


def add(outputs: RankOutputs, rank: int, text: str) -> None:
    outputs.add(Output(rank, "run", "stdout", b""), text)


def test_ranks_that_clear_in_each_step_are_drawn_once_for_all_of_them() -> None:
    now = 0.0
    outputs = RankOutputs(lambda: now)
    for rank in (1, 0, 2):
        outputs.clear(rank)
        add(outputs, rank, "first")
    assert not outputs.is_outdated, "nothing was there to clear"
    for rank in (0, 1, 0):
        outputs.clear(rank)
        add(outputs, rank, "second")
        assert outputs.is_due
    texts = ["second", "second", "first"]
    assert [(event.rank, text) for event, text in outputs.draw()] == [*enumerate(texts)]
    outputs.clear(1)
    assert outputs.is_outdated and not outputs.is_due, "rank 0 usually does, too"
    now += 2 * PATIENCE
    assert outputs.is_due


def test_a_loop_that_clears_all_the_time_is_drawn_as_often_as_it_can_be_seen() -> None:
    now = drawn = 0
    outputs = RankOutputs(lambda: now / 1000)
    for now in range(1000):  # milliseconds
        outputs.clear(0)
        add(outputs, 0, f"step {now}")
        if outputs.is_due:
            [(_, text)] = outputs.draw()
            assert text == f"step {now}"
            drawn += 1
    assert drawn == 20
    assert outputs.is_outdated, "the end is shown when the run is over"


def test_what_is_not_kept_is_counted() -> None:
    outputs = RankOutputs()
    for _ in range(3):
        add(outputs, 1, "é" * 60_000 + "\n")
    outputs.add(Display(1, "run", "display", {"text/plain": "shown"}), "")
    (gap, _), *kept = outputs.draw()
    assert isinstance(gap, Output)
    assert (gap.skipped_lines, gap.skipped_bytes, len(kept)) == (1, 120_001, 3)


def test_a_display_that_is_updated_all_the_time_takes_no_more_room() -> None:
    outputs = RankOutputs()
    add(outputs, 0, "before")
    for step in range(1000):
        kind = "update" if step else "display"
        outputs.add(Display(0, "run", kind, {"step": step}, transient={"display_id": "bar"}), "")
    _, (shown, _) = outputs.draw()
    assert isinstance(shown, Display)
    assert (shown.kind, shown.data) == ("display", {"step": 999})
