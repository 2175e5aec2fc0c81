"""Ranks that print more than a notebook can take."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs import talk
from jupyter_sky.cluster.runs.talk import QuietRequests
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.local import Local
from jupyter_sky.transport.protocol.events import Output
from tests.cluster.taken_over import single_end, taken_over
from tests.waiting import until


def test_very_many_lines(cells) -> None:
    cells.run("for i in range(300_000): print('line', i)", ranks=[0])
    # What is not shown takes no room here.
    assert sum(len(event.data) for event in cells.events) < 2e6
    assert len(cells.events) < 1000
    text = cells.text()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 299998\nline 299999\n")
    shown = text.count("\n") + sum(event.skipped_lines for event in cells.events)
    assert shown == 300_000
    assert cells.cluster.log(0, tail=2).data == b"line 299998\nline 299999\n"


def test_one_line_of_fifty_megabytes_and_bytes_that_are_no_text(cells) -> None:
    size = cells.cluster.log(0, tail=1).size
    cells.run("print('x' * 50_000_000)\nos.write(1, bytes(range(256)))")
    assert sum(len(event.data) for event in cells.events) < 2e6
    after = cells.cluster.log(0, tail=1).size
    assert after - size == 50_000_001 + 256
    printed = [event for event in cells.events if isinstance(event, Output)]
    assert printed[-1].data.endswith(bytes(range(256)))


def test_what_comes_after_a_flood_is_shown(cells) -> None:
    cells.run("print('y' * 5_000_000)\nprint('the end')")
    assert cells.text().endswith("the end\n")


def test_a_stopped_run_is_waited_for_whose_output_is_on_its_way(new, attached, monkeypatch) -> None:
    started = new(nodes=2, provider=Local(machines=2), framework=False)
    looks: list[int] = []
    look = QuietRequests._end_untold

    def look_after_event(
        requests: QuietRequests, connection: Connection, run: str, known: int = -1, *left: int
    ) -> None:
        """Look when something has come, however busy the machine is."""
        if connection.events.last == known and 1 in connection.ranks:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, look_after_event, requests, connection, run, known, *left)
            return
        look(requests, connection, run, known, *left)
        looks.extend(connection.ranks & {1})

    monkeypatch.setattr(QuietRequests, "_end_untold", look_after_event)
    monkeypatch.setattr(talk, "ENDED_WITHIN", 0.0)
    ends: list[dict[str, Any]] = []

    def keep_back(message: dict[str, Any]) -> dict[str, Any]:
        if message.get("event") not in ("rank_done", "ranks_done"):
            return message
        ends.append(single_end(message))
        return {}

    with taken_over(started.cluster, 1) as node:
        started.cluster.close()
        cells = attached(started.cluster.name, framework=False)
        cells.cluster._controller.timeouts = Timeouts(stop=0.1)
        node.change = keep_back
        run = cells.start("kept = 1")
        until(lambda: ends)
        run.stop()
        output = {"event": "output", "rank": 1, "run": run.id, "stream": "stdout", "data": b"x"}
        for number in range(3):
            node.say(output)
            until(lambda number=number: len(looks) > number)
        node.say(ends[0])
        told: list[str] = []
        run.follow(notice=told.append)
        assert told == []
        assert cells.cluster.snapshot(run=run.id)["ranks"][1]["error"] is None
        assert cells.cluster.state.group  # so that no rank has to begin anew
