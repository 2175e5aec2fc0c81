"""Questions about a rank's variables are answered in time, whatever the variables are."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_sky.cluster.network import incoming
from jupyter_sky.node.rank.comparison import looker
from jupyter_sky.node.rank.comparison.looker import Looker
from jupyter_sky.transport.protocol.inspection import LookedRank, Question
from jupyter_sky.transport.protocol.rank_messages import Looked


class _Endless:
    """Has more items than can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (), None, self._items()

    def _items(self) -> Iterator[Any]:
        return (self if at % 2 else frozenset([at]) for at in itertools.count())


class _Waits:
    """Its state is not known before something that may never be."""

    def __init__(self) -> None:
        self.asked, self.told = threading.Event(), threading.Event()

    def state_dict(self) -> dict[str, int]:
        self.asked.set()
        self.told.wait(60)
        return {"x": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise NotImplementedError


class _Rank:
    """A rank with some variables, which answers questions."""

    def __init__(self, **names: Any) -> None:
        self._looker = Looker(0, names, {})
        self._answers: queue.Queue[Looked] = queue.Queue()

    def ask(self, what: Question, *names: str) -> None:
        self._looker.look(
            {
                "op": "look",
                "number": 1,
                "busy": False,
                "what": what,
                "names": list(names),
                "random": False,
                "start": 0,
            },
            self._answers.put,
        )

    def answer(self) -> LookedRank:
        return self._answers.get(timeout=30)["seen"]


def test_what_takes_too_long_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looker, "_VALUE_WITHIN", 0.2)
    monkeypatch.setattr(looker, "WITHIN", 0.2)
    rank = _Rank(endless=_Endless(), number=1)
    rank.ask("names")
    answer = rank.answer()
    assert {each["name"]: bool(each["digest"]) for each in answer["names"]} == {
        "endless": False,
        "number": True,
    }
    assert answer["trouble"] == ""
    rank.ask("digests", "endless", "number")
    assert rank.answer()["trouble"].startswith("endless, number in 0 seconds: ask for fewer ")


def test_what_needs_no_memory_may_have_any_size() -> None:
    numpy = pytest.importorskip("numpy")
    endless = numpy.broadcast_to(numpy.zeros(1), (2**59,))
    rank = _Rank(endless=endless, many=[endless] * 100, number=1)
    rank.ask("names")
    answer = rank.answer()
    assert incoming.is_answer("look", {"looked": [answer]})
    sizes = {each["name"]: each["size"] for each in answer["names"]}
    assert (sizes["endless"], sizes["many"]) == (None, None)
    assert sizes["number"]


def test_a_question_does_not_wait_for_the_answer_to_another() -> None:
    waits = _Waits()
    rank = _Rank(waits=waits, number=1)
    rank.ask("digests", "waits")
    assert waits.asked.wait(30)
    for what in ("names", "digests"):
        rank.ask(what, "number")
        [seen] = rank.answer()["names"]
        assert (seen["name"], bool(seen["digest"])) == ("number", True)
    waits.told.set()
    [seen] = rank.answer()["names"]
    assert (seen["name"], bool(seen["digest"])) == ("waits", True)
