"""Whether a rank's run waits for its notebook, as its messages tell."""

from __future__ import annotations

from typing import Any

from jupyter_sky.node.supervisor.waiting import Waiting


def run(*, serves: bool) -> Waiting:
    request: Any = {"serves": {"concurrency": 2} if serves else None}
    return Waiting(request)


def tell(waiting: Waiting, kind: str, number: int = 0, feed: int = 0) -> None:
    message: Any = {"kind": kind, "number": number, "feed": feed}
    waiting.on_tell(message)


def told(waiting: Waiting, kind: str, number: int = 0, feed: int = 0, count: int = 0) -> None:
    waiting.on_told({"kind": kind, "number": number, "feed": feed, "count": count})


def test_a_rank_without_calls_waits_for_some() -> None:
    waiting = run(serves=True)
    assert waiting.is_for_notebook
    for number in (1, 2):
        tell(waiting, "call", number)
    told(waiting, "error", 1)
    assert not waiting.is_for_notebook
    told(waiting, "ask", 2, count=4)
    assert waiting.is_for_notebook
    told(waiting, "value", 2)
    tell(waiting, "call", 3)
    assert not waiting.is_for_notebook


def test_a_rank_waits_until_its_values_are_read() -> None:
    waiting = run(serves=False)
    assert not waiting.is_for_notebook  # it computes the first one
    for _ in range(2):
        told(waiting, "value")
    tell(waiting, "more", 1)
    assert waiting.is_for_notebook
    tell(waiting, "more", 1)
    assert not waiting.is_for_notebook
    told(waiting, "value")
    tell(waiting, "close")
    assert not waiting.is_for_notebook


def test_a_rank_waits_for_items_until_there_are_no_more() -> None:
    waiting = run(serves=False)
    told(waiting, "ask", feed=1, count=2)
    tell(waiting, "item", feed=1)
    assert waiting.is_for_notebook
    tell(waiting, "items_end", feed=1)
    told(waiting, "ask", feed=1, count=1)  # it was on its way
    assert not waiting.is_for_notebook
