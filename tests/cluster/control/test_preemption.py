"""What is said of nodes that will be taken away."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from jupyter_sky.cluster.control.preemption import PreemptionMonitor
from jupyter_sky.transport.protocol.events import Leaving


@pytest.fixture
def monitor() -> PreemptionMonitor:
    return PreemptionMonitor(lambda work: work.close(), lambda text: None, lambda: None, "AWS")


@dataclass(frozen=True)
class _Node:
    name: str
    is_over: bool = False


def _node(name: str) -> Any:
    return _Node(name)


def test_the_money_is_spent_once_all_nodes_say_so(monitor: PreemptionMonitor) -> None:
    first, second = _node("lab1"), _node("lab2")
    monitor.on_leaving(first, Leaving("spent", time.time() + 100, [0]))
    assert not monitor.are_spent([first, second])
    monitor.on_leaving(second, Leaving("spent", time.time() + 100, [0]))
    assert monitor.are_spent([first, second])
    assert "lab2 will end in 1:" in monitor.note


def test_a_node_that_is_there_long_afterwards_has_got_more_time(
    monitor: PreemptionMonitor,
) -> None:
    node = _node("lab1")
    monitor.on_leaving(node, Leaving("spent", time.time() - 600, [0]))
    assert monitor.note == ""
    assert not monitor.are_spent([node])
