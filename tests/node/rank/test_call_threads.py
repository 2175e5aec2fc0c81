"""Calls that a thread of a rank carries out one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_sky.node.rank.calls.conversation import RankConversation
from jupyter_sky.node.rank.calls.process import Mail
from jupyter_sky.node.rank.calls.server import CallServer, _Worker
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.transport.protocol.events import Told
from tests.waiting import PATIENCE


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


def test_a_call_that_is_stopped_where_it_waits_says_nothing_after_the_end_of_the_run(
    tmp_path: Path,
) -> None:
    waits, said = threading.Event(), list[str]()

    def tell(event: Told) -> None:
        said.append(event.kind)
        if event.kind == "waits":
            waits.set()

    def take_all(notebook: RankConversation) -> list[object]:
        return list(notebook.items(0))

    packed, _ = blobs.pack(pickling.dump(take_all))
    fields = {"run": "r", "rank": 0, "number": 1, "feed": 0, "names": [], "cells": {}}
    calls = [{**fields, "kind": "call", "packed": packed, "timeout": None}]

    def next_told(run: str) -> Any:
        if calls:
            return calls.pop()
        assert waits.wait(PATIENCE)
        raise KeyboardInterrupt  # Stop

    shell = SimpleNamespace(
        reset_traceback=lambda: None,
        record_traceback=lambda error, skip: None,
        report=lambda error: None,
    )
    parts = {"inbox": SimpleNamespace(next_told=next_told), "shell": shell, "folder": tmp_path}
    rank: Any = SimpleNamespace(rank=0, tell=tell, interrupts=None, namespace=None, **parts)
    serves: Any = {"concurrency": 2, "executor": "thread"}
    server = CallServer(rank, cast(Any, {"run": "r", "serves": serves}))
    with pytest.raises(KeyboardInterrupt):
        server.serve()
    for worker in server._workers:
        worker._thread.join(PATIENCE)
    assert said == ["ask", "waits"]
