"""Whatever goes wrong at a call to AWS, nothing of it goes on costing money: a sample.

``python -m tests.providers.aws.calls.table`` does it at every call, and writes ``table.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jupyter_sky.providers.aws.clients import Clients
from tests.providers.aws.calls import table
from tests.providers.aws.calls.scenes import (
    END,
    FAULTS,
    GROWTH,
    LAUNCH,
    LEAVING,
    LOOK,
    START,
    STOP,
    Outcome,
    Scenes,
    put,
    scale,
    turn,
)
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.starting import SPEC, Booting, provider, start

Left = Callable[[], list[str]]

RUN = LAUNCH.index("RunInstances") + 1
SAMPLE = [
    *((RUN, fault) for fault in FAULTS),
    (LAUNCH.index("CreateSecurityGroup") + 1, "killed after"),
    (LAUNCH.index("CreateSecurityGroup") + 1, "lost answer"),
    (LAUNCH.index("CreatePlacementGroup") + 1, "lost answer"),
    (LAUNCH.index("ImportKeyPair") + 1, "lost answer"),
    (LAUNCH.index("GetParameter") + 1, "throttled"),
    (len(LAUNCH), "denied for ever"),
    (len(LAUNCH) + 1, "denied for ever"),
    (len(LAUNCH) + 1, "killed before"),
    (len(LAUNCH) + 1 + END.index("DeleteKeyPair"), "denied for ever"),
    (len(LAUNCH) + 1 + END.index("DeleteSecurityGroup"), "killed before"),
]


@pytest.fixture
def scenes(account: Account, subnet: str, clients: Clients) -> Iterator[Scenes]:
    """Types and prices are known, and what was asked so far is forgotten."""
    provider(subnet).check(SPEC, [])
    account.calls.clear()
    yield Scenes(account, clients, subnet)


def test_what_is_asked_of_aws(account: Account, scenes: Scenes, left: Left) -> None:
    with pytest.raises(Booting):
        start(scenes.subnet)
    # Ending a cluster looks once more whether anything is there.
    assert account.actions == LAUNCH + END + LOOK
    assert left() == []


@pytest.mark.parametrize(
    ("number", "fault"),
    SAMPLE,
    ids=[f"{(LAUNCH + END)[number - 1]}-{fault}" for number, fault in SAMPLE],
)
def test_nothing_is_left_of_a_launch(scenes: Scenes, number: int, fault: str) -> None:
    outcome = scenes.life(number, fault)
    assert outcome.action == (LAUNCH + END)[number - 1]
    assert_nothing_is_left(outcome)
    if fault == "denied for ever":
        assert f":{outcome.action}" in outcome.told, "what is denied is named"
    elif not fault.startswith("killed"):
        assert outcome.told == "", "it is tried again"


def assert_nothing_is_left(outcome: Outcome) -> None:
    assert outcome.beyond == 0, outcome
    assert outcome.left == [], outcome


def test_nothing_is_left_of_growth(
    start: Start, scenes: Scenes, account: Account, clients: Clients
) -> None:
    cells = start(1, framework=False)
    cells.run("kept = 1")
    name = cells.cluster.name
    cells.cluster.close()
    account.calls.clear()
    scale(name, 2)
    assert account.actions == GROWTH
    account.calls.clear()
    scale(name, 1)
    assert account.actions == LEAVING
    at = GROWTH.index("RunInstances") + 1
    for number, fault in (
        (at, "denied for ever"),
        (at, "killed after"),
        (at, "throttled"),
        (at + 1, "killed before"),
        (at + 1, "denied for ever"),
    ):
        outcome = scenes.scale(name, 2, number, fault)
        assert outcome.action == GROWTH[number - 1], (outcome, account.actions)
        assert_nothing_is_left(outcome)
    scenes.grown(name)
    assert_nothing_is_left(scenes.scale(name, 1, 1, "killed before"))
    table.end(name)


def test_nothing_is_lost_of_a_cluster_that_is_stopped(
    start: Start, scenes: Scenes, account: Account
) -> None:
    cells = start(1, framework=False)
    name = cells.cluster.name
    cells.cluster.close()
    put(name)
    turn(name, on=False)
    turn(name, on=True)
    account.calls.clear()
    turn(name, on=False)
    assert account.actions == STOP
    account.calls.clear()
    turn(name, on=True)
    assert account.actions == START
    for fault in ("killed before", "killed after"):
        number = STOP.index("StopInstances") + 1
        outcome = scenes.stop(name, number, fault)
        assert outcome.action == STOP[number - 1], (outcome, account.actions)
        assert_nothing_is_left(outcome)
        number = START.index("StartInstances") + 1
        outcome = scenes.start(name, number, fault)
        assert outcome.action == START[number - 1], (outcome, account.actions)
        assert_nothing_is_left(outcome)
    table.end(name)


def test_the_table_is_of_these_calls_and_has_nothing_left() -> None:
    rows = table.saved()
    phases = {"launch": LAUNCH, "end": END, "growth": GROWTH, "leaving": LEAVING}
    phases |= {"stop": STOP, "start": START}
    for phase, calls in phases.items():
        assert [row.action for row in rows if row.phase == phase] == calls, phase
    for row in rows:
        assert set(row.beyond_and_left) <= {"0, 0", "the same"}, row
