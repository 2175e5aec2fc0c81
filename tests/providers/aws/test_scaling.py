"""Instances join a cluster, and leave it: rented like the others, and given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.client import Clients
from jupyter_sky.providers.folders import home
from tests.cluster.test_scaling import assert_is_whole, prepare
from tests.providers.aws.account import Account, Answer, Call, refusal
from tests.providers.aws.conftest import Start
from tests.providers.aws.machines import Machines


def running(clients: Clients) -> int:
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=alive)["Reservations"]
    return sum(len(each["Instances"]) for each in found)


def test_instances_come_and_go(
    start: Start, machines: Machines, clients: Clients, account: Account, left: Callable[[], list]
) -> None:
    cells = start(2, max_cost=40)
    prepare(cells)
    before = {host.address: host.run("cat", "/run/jupyter-sky-until") for host in hosts(machines)}
    cells.cluster.scale(4)
    assert_is_whole(cells, 4, keep=[0, 1, None, None])
    assert cells.cluster.price == pytest.approx(0.8)
    assert running(clients) == 4
    asked = [call.params for call in account.calls if call.action == "RunInstances"]
    same = ("InstanceType", "KeyName", "Placement.AvailabilityZone", "ImageId")
    assert [asked[0][name] for name in same] == [asked[1][name] for name in same]
    # The money is spent twice as fast.
    limits = [int(host.run("cat", "/run/jupyter-sky-until")) for host in hosts(machines)]
    up = float(hosts(machines)[0].run("cut", "-d.", "-f1", "/proc/uptime"))
    for address, limit in before.items():
        assert limits[0] - up == pytest.approx((int(limit) - up) / 2, rel=0.01), address
    assert max(limits) - min(limits) < 60
    cells.cluster.scale(1)
    assert_is_whole(cells, 1, keep=[0])
    assert cells.cluster.price == pytest.approx(0.2)
    assert running(clients) == 1
    assert [host.is_up for host in machines.hosts.values()] == [True, False, False, False]
    cells.cluster.down()
    assert left() == []


def hosts(machines: Machines) -> list:
    return [host for host in machines.hosts.values() if host.is_up]


def test_what_aws_has_not_leaves_the_cluster_as_it_was(
    start: Start, clients: Clients, account: Account
) -> None:
    cells = start(1, max_cost=40)
    prepare(cells)

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            return refusal("InsufficientInstanceCapacity", "We do not have enough")
        return carry_out()

    account.fault = refuse
    with pytest.raises(SkyError, match="1 node: AWS has no 1 more × d3.xlarge in us-east-1a, whe"):
        cells.cluster.scale(2)
    assert_is_whole(cells, 1, keep=[0])
    assert running(clients) == 1


def test_a_machine_that_does_not_let_us_in_is_given_back(
    start: Start, clients: Clients, account: Account, machines: Machines
) -> None:
    cells = start(1, framework=False)
    account.on_run = lambda instance, address, params: machines._terminate(instance)

    def end(text: object) -> None:
        if str(text).endswith("to boot"):
            raise SkyError("enough")

    with pytest.raises(SkyError, match="enough"):
        cells.cluster.scale(2, progress=end)
    assert running(clients) == 1
    cells.run("1 + 1")


def test_a_cluster_of_another_kernel_can_be_scaled(start: Start, clients: Clients) -> None:
    from jupyter_sky.cluster import registry
    from jupyter_sky.cluster.cluster import Cluster
    from tests.cluster.conftest import Cells

    cells = start(1, framework=False)
    row = registry.find(cells.cluster.name)
    assert row is not None
    # What was said when it was started is not known there.
    provider = replace(cells.cluster.provider, subnet=None, addresses="public")
    taken = Cluster.attach(row, provider, cells.cluster.frame)
    assert taken is not None
    taken.scale(2)
    assert running(clients) == 2
    assert Cells(taken).ask("1 + 1") == [2, 2]
    taken.down()
    assert not (home() / "aws" / "keys" / taken.id).exists()
