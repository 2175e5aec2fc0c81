"""Whether a rank's run waits for its notebook, as its messages tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank.calls.conversation import RankConversation
from jupyter_sky.node.supervisor.waiting import Waiting


def run(*, at_once: int | None) -> Waiting:
    request: Any = {"client": "", "serves": {"concurrency": at_once} if at_once else None}
    return Waiting(request)


def tell(waiting: Waiting, kind: str, number: int = 0, feed: int = 0) -> None:
    message: Any = {"kind": kind, "number": number, "feed": feed}
    waiting.on_tell(message)


def told(waiting: Waiting, kind: str, number: int = 0, count: int = 0) -> None:
    waiting.on_told({"kind": kind, "number": number, "feed": 0, "count": count})


def test_a_rank_without_calls_waits_for_some() -> None:
    waiting = run(at_once=2)
    assert waiting.is_for_notebook
    for number in (1, 2):
        tell(waiting, "call", number)
    told(waiting, "error", 1)
    assert not waiting.is_for_notebook
    told(waiting, "ask", 2, count=4)
    assert not waiting.is_for_notebook  # it uses what it has
    told(waiting, "waits", 2, count=0)
    assert waiting.is_for_notebook
    told(waiting, "value", 2)
    tell(waiting, "call", 3)
    assert not waiting.is_for_notebook


def test_calls_behind_one_that_waits_do_not_keep_a_node() -> None:
    waiting = run(at_once=1)
    for number in (1, 2, 3):
        tell(waiting, "call", number)
    told(waiting, "waits", 1, count=0)
    assert waiting.is_for_notebook
    tell(waiting, "item", 1)
    assert not waiting.is_for_notebook
    told(waiting, "value", 1)
    assert not waiting.is_for_notebook  # the next one has begun


def test_a_rank_waits_until_its_values_are_read() -> None:
    waiting = run(at_once=None)
    assert not waiting.is_for_notebook  # it computes the first one
    for _ in range(2):
        told(waiting, "value")
    assert not waiting.is_for_notebook  # it goes on with the next
    told(waiting, "waits", count=0)
    assert waiting.is_for_notebook
    tell(waiting, "more")
    assert not waiting.is_for_notebook
    told(waiting, "waits", count=1)
    assert waiting.is_for_notebook
    tell(waiting, "close")
    assert not waiting.is_for_notebook


def test_a_rank_waits_for_items_until_there_are_no_more() -> None:
    waiting = run(at_once=None)
    told(waiting, "ask", count=2)
    tell(waiting, "item", feed=1)
    told(waiting, "waits", count=0)  # said before the item arrived
    assert not waiting.is_for_notebook
    told(waiting, "waits", count=1)
    assert waiting.is_for_notebook
    tell(waiting, "items_end", feed=1)
    assert not waiting.is_for_notebook


class IsStopped(BaseException):
    pass


def is_stopped() -> Any:
    raise IsStopped


@pytest.mark.parametrize("wait", [is_stopped, lambda: None])
def test_a_call_that_is_stopped_while_it_waits_goes_on_to_clean_up(wait: Any) -> None:
    waiting = run(at_once=None)
    seen = []

    def on_told(event: Any) -> None:
        waiting.on_told(event.message())
        seen.append(waiting.is_for_notebook)

    rank: Any = SimpleNamespace(rank=0)
    conversation = RankConversation(rank, "run", tell=on_told, wait=wait)
    with pytest.raises((IsStopped, SkyError)):
        next(conversation.items(0))
    assert seen == [False, True, False]  # asks, waits, goes on
