"""The steps by which a rank is stopped, and how long it has for each."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_sky.node.supervisor.stop import BREAK_AFTER, Stopper
from tests.waiting import PATIENCE

RUN = "the run"


class Deaf:
    """A rank that reacts to nothing, and what it was told."""

    def __init__(self) -> None:
        self.run, self.pid, self.runs_script = RUN, 0, False
        self.ignored_stop = 0.0
        self.told: list[Any] = []

    def signal(self, number: int) -> None:
        self.told.append(number)

    def send_aside(self, command: Any) -> None:
        self.told.append(SimpleNamespace(is_forced=command["force"]))


def test_a_node_that_stood_still_gives_its_ranks_the_time_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stop() -> None:
        rank, loop = Deaf(), asyncio.get_running_loop()
        ranks: Any = {0: rank}
        Stopper(ranks).stop(RUN, deadline=5.0)
        # As where a virtual machine is moved, or a container is paused.
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + 60.0)
        while len(rank.told) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # what else is due
        assert rank.told == [signal.SIGINT, SimpleNamespace(is_forced=False)]

    asyncio.run(asyncio.wait_for(stop(), PATIENCE))


def test_a_rank_that_reacts_to_nothing_is_killed_when_its_time_is_over() -> None:
    async def stop() -> None:
        rank = Deaf()
        ranks: Any = {0: rank}
        Stopper(ranks).stop(RUN, deadline=4 * BREAK_AFTER)
        while not rank.ignored_stop:
            await asyncio.sleep(BREAK_AFTER / 10)
        first, *steps, last = rank.told
        assert (first, last) == (signal.SIGINT, signal.SIGKILL)
        # By force when half of the time is over.
        assert [step.is_forced for step in steps] == [False, True, False]

    asyncio.run(asyncio.wait_for(stop(), PATIENCE))
