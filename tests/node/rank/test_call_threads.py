"""Calls that a thread of a rank carries out one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from jupyter_sky.node.rank.calls.process import Mail
from jupyter_sky.node.rank.calls.server import _Worker


def test_what_stops_a_call_too_late_leaves_the_next_one() -> None:
    stops: list[Callable[[], object]] = []
    answers: list[Any] = []

    class Server:
        """Carries out two calls; the first one is stopped as the second one runs."""

        def work(self, worker: _Worker) -> None:
            made.wait()
            for number in (1, 2):
                told: Any = {"number": number, "timeout": None}
                answers.append(worker.carry_out(told, Mail()))

        def begins(self, told: Any, stop: Callable[[], object]) -> bool:
            stops.append(stop)
            return True

        def answer_aside(self, told: Any, *_: object) -> Any:
            if told["number"] == 2:
                stops[0]()
            return SimpleNamespace(kind="value", number=told["number"])

        def stopped(self, told: Any, *_: object) -> Any:
            return SimpleNamespace(kind="stopped", number=told["number"])

    made = threading.Event()
    worker = _Worker(cast(Any, Server()), print)
    made.set()
    worker._thread.join()
    assert [(each.kind, each.number) for each in answers] == [("value", 1), ("value", 2)]
