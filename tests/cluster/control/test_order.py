"""What nodes tell is handled in the order in which it comes, also where much comes at one time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import ClusterListener, Done
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runtime_env import ClusterConfig, RuntimeEnv, Timeouts
from jupyter_sky.cluster.state import ClusterState, RankPhase, reduce, running
from jupyter_sky.providers.base import Node
from jupyter_sky.providers.local.provider import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.events import Event, RankDone, RankExited, RankStarted


class Told(ClusterListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def on_event(self, connection: Connection, event: Event) -> None:
        self.said.append(type(event).__name__)

    def on_ranks_done(self, done: Sequence[Done]) -> None:
        self.said.append([event.rank for _, event in done])


class Node4:
    """The connection to a node with ranks 0 to 3, as far as events come over it."""

    ranks, is_repeating = frozenset(range(4)), False


def busy_state() -> ClusterState:
    state = ClusterState.new([Node(0, "10.0.0.1", "eth0", (0, 1, 2, 3))])
    for rank in range(4):
        state = reduce(state, RankStarted(rank, 100 + rank))
        ranks = [each._replace(generation=1) for each in state.ranks]
        state = replace(state, ranks=tuple(ranks))
    return running(state, [0, 1, 2, 3], "run")


def controller(listener: Told) -> Controller:
    spec = ClusterSpec(name="order", nodes=1)
    config = ClusterConfig(spec, "id", Local(), RuntimeEnv(life=None), Timeouts(stop=1))
    made = Controller(config, listener)
    made.state = busy_state()
    return made


def test_ranks_that_end_together_are_told_as_one() -> None:
    async def scenario() -> None:
        told, node = Told(), Node4()
        cluster: Any = controller(told)
        for rank in (2, 0, 3):
            cluster.on_event(node, RankDone(rank, "run", "ok", broken=rank == 3))
        assert told.said == []
        await asyncio.sleep(0)
        assert told.said == [[2, 0, 3]]
        phases = [(each.phase, each.run, each.generation) for each in cluster.state.ranks]
        assert phases == [
            (RankPhase.IDLE, None, 1),
            (RankPhase.RUNNING, "run", 1),
            (RankPhase.IDLE, None, 1),
            (RankPhase.IDLE, None, 0),
        ]

    asyncio.run(scenario())


def test_what_comes_behind_the_end_of_a_rank_is_handled_behind_it() -> None:
    async def scenario() -> None:
        told, node = Told(), Node4()
        cluster: Any = controller(told)
        cluster.on_event(node, RankDone(0, "run", "ok"))
        cluster.on_event(node, RankDone(1, "run", "ok"))
        cluster.on_event(node, RankExited(0, 100, "it was killed", None, "", True))
        assert told.said == [[0, 1], "RankExited"]
        assert cluster.state.ranks[0].phase is RankPhase.GONE
        # How a rank failed is no matter for later: the others are to be stopped.
        cluster.on_event(node, RankDone(2, "run", "ok"))
        cluster.on_event(node, RankDone(3, "run", "error"))
        assert told.said[2:] == [[2, 3]]

    asyncio.run(scenario())


def test_ranks_that_are_done_are_as_after_one_event_after_the_other() -> None:
    state = busy_state()
    for rank in (0, 2, 7):  # one that is not there any more
        state = reduce(state, RankDone(rank, "run", "ok"))
    assert [each.run for each in state.ranks] == [None, "run", None, "run"]
    assert [each.pid for each in state.ranks] == [100, 101, 102, 103]
