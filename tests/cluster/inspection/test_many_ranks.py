"""Where very many ranks are: the sentence stays one that a person reads."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jupyter_sky.cluster.inspection.findings import Findings, findings

RANKS = range(64)


def _seen(rank: int, line: int, number: int = 0, shapes: str = "float32 [4]", **more: Any) -> Any:
    """A rank in a line of the cell, and in a collective if that has a number."""
    collective = {
        "operation": "all_reduce", "number": number, "group": "0", "shapes": shapes,
        "ranks": list(RANKS), "seconds": 30.0,
    }  # fmt: skip
    frame = {
        "place": "cell [7]", "line": line, "function": "step", "text": f"work({line})", "own": True
    }  # fmt: skip
    return {
        "rank": rank, "run": "r", "ended": None, "answered": "itself", "frames": [frame],
        "collectives": [collective] if number else [], "recent": [], "children": [], **more,
    }  # fmt: skip


def _found(seen: list[Any]) -> Findings:
    return findings(seen, RANKS, {})


def test_one_that_the_others_wait_for_is_said_in_one_line() -> None:
    seen = [_seen(rank, 12, 41) for rank in RANKS if rank != 9]
    found = _found([*seen, _seen(9, 3)])
    assert found.sentence == (
        "ranks 0-8, 10-63 wait in all_reduce #41 (cell [7], line 12) for 30 s; "
        "rank 9 is at `work(3)` (cell [7], line 3)"
    )
    assert len(found.stacks) == 5


def test_one_whose_tensors_are_not_known_yet_waits_like_the_others() -> None:
    seen = [_seen(rank, 12, 41, shapes="float32 [4]" * (rank != 9)) for rank in RANKS]
    assert _found(seen).sentence == "ranks 0-63 wait in all_reduce #41 (cell [7], line 12) for 30 s"


@pytest.mark.parametrize("waits", [True, False])
def test_each_in_a_line_of_its_own_is_still_short(waits: bool) -> None:
    number = 41 if waits else 0
    found = _found([_seen(rank, rank, number, shapes=f"float32 [{rank}]") for rank in RANKS])
    assert "58 more ranks " in found.sentence
    assert len(found.sentence) < 1000
    assert len(found.stacks) < 100
    assert "48 more ranks elsewhere: ranks 16-63" in found.stacks[-1]
    assert ("and 58 others" in found.sentence) == waits


def test_most_are_named_first() -> None:
    found = _found([_seen(rank, rank if rank < 20 else 99) for rank in RANKS])
    assert found.sentence.startswith(
        "no rank waits for another: ranks 20-63 are at `work(99)` (cell [7], line 99); rank 0 is"
    )
    assert found.sentence.endswith("; 15 more ranks are elsewhere")


def test_a_run_that_was_stopped_is_said_to_be() -> None:
    seen = [_seen(rank, 12, 41, stopping=rank == 5) for rank in RANKS]
    assert _found(seen).sentence.startswith("the run is being stopped: ranks 0-63 wait in all_red")
    assert _found(seen).past.startswith("ranks 0-63 waited in all_reduce")


def test_those_that_did_not_answer_before_a_run_ended_may_answer_now() -> None:
    seen = [_seen(rank, 12, 41) for rank in RANKS if rank not in (9, 10, 11)]
    nobody = [_seen(rank, 12, answered="nobody") for rank in (9, 10)]
    found = findings([*seen, *nobody], RANKS, {11: "h100-4"})
    assert found.sentence.endswith(
        "; ranks 9-10 do not answer: the process is stopped, or the machine has no time for it; "
        "rank 11 is on h100-4, which does not answer"
    )
    assert found.past.endswith(
        "; ranks 9-10 did not answer: the process was stopped, or the machine had no time for it; "
        "rank 11 was on h100-4, which did not answer"
    )


@pytest.mark.parametrize(("answered", "how"), [("itself", " without it"), ("system", "")])
def test_a_rank_that_did_not_answer_itself_is_not_said_to_have_left_out_a_collective(
    answered: str, how: str
) -> None:
    seen = [_seen(rank, 12, 41) for rank in RANKS if rank != 9]
    left = _seen(9, 3, run=None, ended="r", answered=answered)
    assert _found([*seen, left]).sentence.endswith(f"; rank 9 has finished{how}")


def test_it_costs_little() -> None:
    seen = [_seen(rank, rank, 41, shapes=f"[{rank}]") for rank in RANKS]
    for each in seen:
        begun = [{"group": "0", "number": n, "operation": "x", "shapes": ""} for n in range(64)]
        each["recent"] = begun
    before = time.process_time()
    _found(seen)
    assert time.process_time() - before < 5  # milliseconds, in fact
