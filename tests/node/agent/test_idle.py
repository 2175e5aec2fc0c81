"""When a node ends by itself, whatever other nodes answer."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from jupyter_sky.node.agent.idle import IdleTimer, IdleTimes


def test_a_newer_agent_may_say_more() -> None:
    said = {"unused": 1.5, "idle": 2, "unattended": 3, "reason": "newer"}
    assert IdleTimes.from_message(said) == IdleTimes(1.5, 2.0, 3.0)


NO_TIMES = ("1", math.nan, math.inf, -1.0, None, [])


@pytest.mark.parametrize(
    "said",
    [{}, {"unused": 1.0, "idle": 1.0}]
    + [{"unused": value, "idle": 1.0, "unattended": 1.0} for value in NO_TIMES],
)
def test_what_is_no_time_counts_as_no_answer(said: dict[str, Any]) -> None:
    assert IdleTimes.from_message(said) is None


class _Node:
    """A node whose notebook is connected and has begun a run, in which ranks wait for it."""

    is_busy = is_used = True
    is_working = False

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_idle(self) -> None:
        raise AssertionError("it has a run")

    async def ask_others(self) -> list[IdleTimes]:
        return []

    def end_because(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_run_that_only_waits_for_its_notebook_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        node = _Node()
        timer = IdleTimer(60.0, 120.0, None, node)
        timer.start_timeout()

        async def at(seconds: float) -> list[str]:
            nonlocal now
            now = seconds
            for _ in range(5):
                await asyncio.sleep(0)
            return node.reasons

        await at(60.0)
        timer.on_answer()  # somebody has read its values, and it made more
        assert await at(179.0) == []
        node.is_working = True  # as when a call takes long
        assert await at(190.0) == []
        assert await at(300.0) == []
        node.is_working = False
        timer.on_answer()
        assert await at(419.0) == []
        assert await at(422.0) == ["its run only waited for the notebook for 2 min"]

    asyncio.run(main())
