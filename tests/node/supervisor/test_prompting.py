"""Prompts of ranks whose user is gone: after a while they are told that nobody answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jupyter_sky.node.supervisor import prompting as prompting_of_ranks
from jupyter_sky.node.supervisor.prompting import Prompting
from tests.waiting import PATIENCE


class _Rank:
    """A rank in a run, as the supervisor knows it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.heard: list[Any] = []

    def send_aside(self, command: Any) -> None:
        self.heard.append(command)


def _prompted(run: str, number: int) -> dict[str, Any]:
    return {"kind": "debugger", "run": run, "number": number}


async def _until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def test_they_go_on_when_nobody_is_there_and_only_then() -> None:
    async def main() -> None:
        rank: Any = _Rank("a run")
        attended = True
        prompting = Prompting({0: rank}, lambda: attended, gone_after=0.0)
        prompting.on_prompted(rank, _prompted("a run", 1))
        answer: Any = {"run": "a run", "rank": 0, "number": 1, "kind": "line", "text": "n"}
        await asyncio.sleep(0)
        prompting.answer(answer)
        assert [each["kind"] for each in rank.heard] == ["line"]
        prompting.answer(answer)  # the same again, as after a broken link
        assert len(rank.heard) == 1
        prompting.on_prompted(rank, _prompted("a run", 2))
        attended = False
        await _until(lambda: len(rank.heard) == 2)
        assert rank.heard[1] == {"op": "answer", "number": 2, "kind": "gone", "text": ""}
        prompting.answer({**answer, "number": 2})  # what was typed comes too late
        assert len(rank.heard) == 2

    asyncio.run(main())


def test_they_go_on_when_a_notebook_is_there_that_nobody_looks_at() -> None:
    async def main() -> None:
        rank: Any = _Rank("a run")
        prompting = Prompting({0: rank}, lambda: True, unanswered=0.0)
        prompting.on_prompted(rank, _prompted("a run", 1))
        await _until(lambda: rank.heard)
        assert (rank.heard[0]["number"], rank.heard[0]["kind"]) == (1, "gone")
        assert "nobody has answered its prompt for" in rank.heard[0]["text"]

    asyncio.run(main())


def test_a_user_who_answers_ranks_of_other_nodes_is_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        now = 0.0
        monkeypatch.setattr(prompting_of_ranks, "_LOOK_EVERY", 0.0)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        rank: Any = _Rank("another run")
        prompting = Prompting({0: rank}, lambda: True, unanswered=60.0)
        prompting.on_prompted(rank, _prompted("another run", 1))
        now = 50.0
        prompting.hold({"run": "a run"})
        now = 100.0
        await _turns(3)
        assert not rank.heard
        now = 111.0
        await _turns(3)
        assert [each["kind"] for each in rank.heard] == ["gone"]

    asyncio.run(main())


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
