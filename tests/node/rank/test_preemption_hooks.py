"""Hooks of the user's that are called when nodes are about to be taken away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from jupyter_sky.node.rank import preemption_hooks
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.preemption_hooks import PreemptionHooks
from jupyter_sky.transport import preemption
from jupyter_sky.transport.preemption import Interruption
from jupyter_sky.transport.protocol.rank_messages import LeavingCommand
from tests.waiting import PATIENCE, until


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interrupts]:
    monkeypatch.setattr(preemption_hooks, "_PAUSE_WITHIN", PATIENCE)
    monkeypatch.setattr(preemption, "hooks", [])
    monkeypatch.setattr(preemption, "notices", [])
    before = signal.getsignal(signal.SIGINT)
    yield Interrupts()
    signal.signal(signal.SIGINT, before)


def leaving(rank: int, at: float = 100.0, kind: str = "terminate") -> LeavingCommand:
    return {"op": "leaving", "kind": kind, "at": at, "ranks": [rank]}


def test_nodes_that_are_taken_away_together_are_saved_from_one_after_the_other(
    interrupts: Interrupts,
) -> None:
    hooks = PreemptionHooks(2, interrupts)
    called, steps, seen = list[Interruption](), [0], list[int]()
    all_said, goes_on = threading.Event(), threading.Event()

    @preemption.hooks.append
    def save(notice: Interruption) -> None:
        called.append(notice)
        first = steps[0]
        if len(called) == 1:
            all_said.wait(PATIENCE)
        goes_on.wait(0.2)  # long enough for a step, if the code is not paused
        seen.append(steps[0] - first)

    def announce() -> None:
        hooks.announce(leaving(0))
        until(lambda: called)
        for command in (leaving(1, at=90.0), leaving(2), leaving(0, kind="rebalance")):
            hooks.announce(command)
        all_said.set()

    def train() -> None:
        while len(seen) < 3:
            steps[0] += 1

    threading.Thread(target=announce, daemon=True).start()
    interrupts.run_interruptible(train)
    assert called == [
        Interruption("terminate", 100.0, (0,), here=False),
        Interruption("terminate", 90.0, (1, 2), here=True),
        Interruption("rebalance", 100.0, (0,), here=False),
    ]
    assert seen == [0, 0, 0]
    assert preemption.pending() is None
    assert [notice.ranks for notice in preemption.notices] == [(0,), (1,), (2,), (0,)]
