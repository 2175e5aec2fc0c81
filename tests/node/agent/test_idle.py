"""When a node ends by itself, whatever other nodes answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jupyter_sky.node.agent.idle import SILENT_FOR, IdleTimer, IdleTimes


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
        self.others: list[IdleTimes | None] = []

    def on_idle(self) -> None:
        raise AssertionError("it has a run")

    async def ask_others(self) -> list[IdleTimes | None]:
        return self.others

    async def write_back(self) -> str | None:
        return None

    def end_because(self, reason: str) -> None:
        self.reasons.append(reason)


def _times(monkeypatch: pytest.MonkeyPatch, node: _Node) -> Callable[[float], Awaitable[list[str]]]:
    """Return what lets it be so many seconds after the start, and says why the node has ended."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def at(seconds: float) -> list[str]:
        nonlocal now
        now = seconds
        for _ in range(5):
            await asyncio.sleep(0)
        return node.reasons

    return at


def test_a_run_that_only_waits_for_its_notebook_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = _Node()
        at = _times(monkeypatch, node)
        timer = IdleTimer(60.0, 120.0, None, node)
        timer.start_timeout()
        await at(60.0)
        timer.on_work()  # somebody has read its values, and it made more
        assert await at(179.0) == []
        node.is_working = True  # as when a call takes long
        assert await at(190.0) == []
        assert await at(300.0) == []
        node.is_working = False
        timer.on_work()
        assert await at(419.0) == []
        assert await at(422.0) == ["its run only waited for the notebook for 2 min"]

    asyncio.run(main())


class _NewNode(_Node):
    """A node to which no notebook has connected yet."""

    is_busy = is_used = False


@pytest.mark.parametrize("has_come", [True, False])
def test_a_new_node_waits_for_its_first_notebook_as_long_as_others_may_take_to_start(
    monkeypatch: pytest.MonkeyPatch, has_come: bool
) -> None:
    async def main() -> None:
        node = _NewNode()
        at = _times(monkeypatch, node)
        timer = IdleTimer(60.0, None, None, node, first_grace=600.0)
        timer.update()
        assert await at(599.0) == []
        node.is_used = has_come
        timer.update()
        if has_come:
            assert await at(700.0) == []
            node.is_used = False
            timer.update()
            assert await at(759.0) == []
        else:
            assert await at(600.5) == ["no notebook used it for 10 min"]
        assert len(await at(762.0)) == 1
        assert node.reasons[0].startswith(f"no notebook used it for {1 if has_come else 10} min")

    asyncio.run(main())


WORKS = IdleTimes(0.0, 0.0, 0.0)
ENDED = "its run only waited for the notebook for 2 min"


@pytest.mark.parametrize("is_back", [True, False])
def test_another_node_that_does_not_answer_for_a_while_may_need_it(
    monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    async def main() -> None:
        node = _Node()
        at = _times(monkeypatch, node)
        IdleTimer(3600.0, 120.0, None, node).start_timeout()
        # Its machine has no time for the agent, because of the run that goes on there.
        node.others = [IdleTimes(0.0, 600.0, 0.0), None]
        for seconds in range(int(SILENT_FOR)):
            assert await at(120.5 + seconds) == []
        if is_back:
            node.others = [WORKS]
        assert await at(122.0 + SILENT_FOR) == ([] if is_back else [ENDED])

    asyncio.run(main())


class _NodeWithVolumes(_Node):
    """One that still writes back what its ranks have written."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.is_written = asyncio.Event()

    async def write_back(self) -> str | None:
        self.begun += 1
        await self.is_written.wait()
        return "2 files stay on the node"


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_run_that_begins_while_files_are_written_back_is_not_ended(
    monkeypatch: pytest.MonkeyPatch, is_needed: bool
) -> None:
    async def main() -> None:
        node = _NodeWithVolumes()
        at = _times(monkeypatch, node)
        timer = IdleTimer(3600.0, 120.0, None, node)
        timer.start_timeout()
        for seconds in (122.0, 124.0, 126.0):
            assert await at(seconds) == []
            timer.update()  # as when a page connects
        assert node.begun == 1
        node.is_working = is_needed
        timer.update()
        node.is_written.set()
        if is_needed:
            assert await at(200.0) == []
            node.is_working = False
            timer.update()
            assert await at(319.0) == []
        assert set(await at(322.0)) == {f"{ENDED}; 2 files stay on the node"}

    asyncio.run(main())
