"""Prompts of ranks whose notebook is gone: after a while they are told that nobody answers."""

from __future__ import annotations

import asyncio
from typing import Any

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
