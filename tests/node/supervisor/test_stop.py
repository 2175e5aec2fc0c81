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

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.run, self.pid, self.runs_script = rank, RUN, 0, False
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


def test_a_rank_that_only_reads_what_it_has_recorded_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stop() -> None:
        reads, deaf = Deaf(rank=0), Deaf(rank=1)
        ranks: Any = {0: reads, 1: deaf}
        stopper = Stopper(ranks)
        stopper.on_code_over(ranks[0], {"code_over": RUN})
        stopper.stop(RUN, deadline=2 * BREAK_AFTER)
        while not deaf.ignored_stop:
            await asyncio.sleep(BREAK_AFTER / 10)
        assert reads.told == [signal.SIGINT]
        assert stopper.was_stopped(RUN)
        # It never comes to an end.
        while not reads.ignored_stop:
            await asyncio.sleep(BREAK_AFTER / 10)
        assert reads.told == [signal.SIGINT, signal.SIGKILL]
        assert not stopper.was_stopped(RUN)

    monkeypatch.setattr("jupyter_sky.node.supervisor.stop.READS_WITHIN", 2 * BREAK_AFTER)
    asyncio.run(asyncio.wait_for(stop(), PATIENCE))
