"""A notebook whose address has changed is let in again, from there and from nowhere else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.network import access, security_group
from tests.cluster.conftest import Cells
from tests.lab import Lab
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.faults import denying
from tests.providers.aws.stand_in.machines import Machines
from tests.waiting import PATIENCE


@pytest.fixture
def before(lab: Lab) -> str:
    """Where the notebook was."""
    return f"{lab.address.rpartition('.')[0]}.99/32"


@pytest.fixture
def moved(
    start: Start,
    machines: Machines,
    clients: Clients,
    before: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Cells:
    """A cluster that was started somewhere else; what is connected stays connected."""
    monkeypatch.setattr(access, "_AGAIN_AFTER", 0.0)
    machines.guard()
    cells = start(1, framework=False)
    cells.run("kept = 1")
    [group] = security_group.find_groups(clients, cells.cluster.id)
    security_group.admit(clients, group, before)
    assert rules(clients, cells) == [before]
    return cells


def rules(clients: Clients, cells: Cells) -> list[str]:
    [group] = security_group.find_groups(clients, cells.cluster.id)
    return list(security_group.who_may_log_in(group))


def access_checked() -> Any:
    [found] = [each for each in AWS(region="us-east-1").diagnose() if each.name == "access"]
    return found


def test_the_next_cell_is_let_in(
    moved: Cells, before: str, machines: Machines, clients: Clients, lab: Lab, account: Account
) -> None:
    name = moved.cluster.name
    account.fault = denying("AuthorizeSecurityGroupIngress")
    assert access_checked().found == f"{name} lets in {before}"
    assert f"this computer is at {lab.address} now; the next cell" in access_checked().fix
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if "your AWS user may not do ec2:AuthorizeSecurityGroupIngress" in text:
            account.fault = None

    run = moved.start("import time\ntime.sleep(0.1)")
    next(iter(machines.hosts.values())).restart_sshd()
    run = moved.start("kept += 1")
    run.follow(notice=tell)
    assert moved.ask("kept") == [2]
    said = f"this computer is at {lab.address} now, and the security group"
    assert any(said in text and f"lets in {before}" in text for text in told), told
    assert not any("keeps trying" in text for text in told[1:])
    assert rules(clients, moved) == [f"{lab.address}/32"]
    assert access_checked().fix == ""


def test_scaling_lets_the_notebook_in(moved: Cells, clients: Clients, lab: Lab) -> None:
    [group] = security_group.find_groups(clients, moved.cluster.id)
    moved.cluster.scale(2)
    assert rules(clients, moved) == [f"{lab.address}/32"]
    # So does another notebook on this computer that has seen the same before.
    security_group.admit(clients, group, f"{lab.address}/32")
    assert rules(clients, moved) == [f"{lab.address}/32"]
    assert moved.ask("globals().get('kept')") == [1, None]


def test_a_region_that_does_not_answer_keeps_no_other_cluster_waiting(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    both = threading.Barrier(2)

    def wait_for_each_other(clients: Clients, identity: str, host: str) -> None:
        asked.append(identity)
        both.wait(PATIENCE)

    monkeypatch.setattr(access, "_let_in", wait_for_each_other)
    with ThreadPoolExecutor(3) as threads:
        looks = [
            threads.submit(access.let_in, clients, cluster, "10.0.0.1")
            for cluster in ("here", "here", "there")
        ]
        assert [each.result() for each in looks] == [None] * 3
    assert sorted(asked) == ["here", "there"], "once for each"


def test_scaling_says_at_once_what_is_in_the_way(
    moved: Cells, before: str, clients: Clients, account: Account
) -> None:
    account.fault = denying("AuthorizeSecurityGroupIngress")
    with pytest.raises(SkyError, match="your AWS user may not do ec2:AuthorizeSecurityGroupIn"):
        moved.cluster.scale(2)
    account.fault = None
    assert "RunInstances" not in account.actions[account.actions.index("RunInstances") + 1 :]
    assert rules(clients, moved) == [before]
