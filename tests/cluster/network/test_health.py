"""Which nodes try to reach which before a cluster is ready, and what is said of broken links."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from jupyter_sky.cluster.network import health
from jupyter_sky.cluster.network.health import LinkMonitor, pairs


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_each_of_a_few_nodes_tries_each_other(count: int) -> None:
    for index, others in enumerate(pairs(count)):
        assert sorted(others) == [each for each in range(count) if each != index]


@pytest.mark.parametrize("count", [33, 64, 100, 1000])
def test_many_nodes_try_a_few_others_each_and_everybody_the_head(count: int) -> None:
    tried = pairs(count)
    for index, others in enumerate(tried):
        assert index not in others
        assert len(others) == len(set(others)) <= 11
        assert index == 0 or 0 in others
    heard = [sum(index in others for others in tried) for index in range(count)]
    assert min(heard) >= 6


@pytest.mark.parametrize("count", [33, 100, 1000])
def test_no_part_of_many_nodes_is_cut_off_unseen(count: int) -> None:
    tried = pairs(count)
    for size in (1, 2, count // 2, count - 1):
        part = set(range(size))
        crossing = [
            (a, b) for a, others in enumerate(tried) for b in others if (a in part) != (b in part)
        ]
        assert len(crossing) >= min(size, count - size)


@dataclass(eq=False)
class Node:
    """The connection to a node, as far as its link goes."""

    name: str
    broken_since: float
    is_up: bool = False
    is_over: bool = False
    is_shut_out: bool = False
    stands_still: bool = False
    trouble: str = ""


def test_of_a_node_that_is_gone_nothing_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_BRIEF", 0.0)

    async def break_link() -> None:
        since = asyncio.get_running_loop().time()
        node: Any = Node("n2", broken_since=since)
        told: asyncio.Queue[str] = asyncio.Queue()
        watching: list[asyncio.Task[None]] = []

        def spawn(watch: Any) -> None:
            watching.append(asyncio.ensure_future(watch))

        monitor = LinkMonitor(spawn, told.put_nowait, lambda node, seconds: None)
        monitor.watch([node])
        monitor.on_link_changed(node)
        assert (await told.get()).startswith("no connection to n2 since")
        node.is_over = True
        assert monitor.note == ""
        monitor.end("cluster train is lost: the agent of n2 ended.")
        assert await told.get() == "cluster train is lost: the agent of n2 ended"
        watching[0].cancel()

    asyncio.run(break_link())
