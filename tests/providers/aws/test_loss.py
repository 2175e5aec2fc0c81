"""Instances that AWS has taken away, or that have broken: why they are gone is said."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest

from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2.user_data import power_off_script
from tests.cluster.conftest import Cells
from tests.cluster.control.test_scaling import assert_is_whole, prepare
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import Account, Answer, Call
from tests.providers.aws.stand_in.machines import Machines
from tests.providers.aws.test_spot import HOOK
from tests.waiting import PATIENCE


def lost(cells: Cells, happen: Callable[[], None]) -> str:
    """Return what is said when something happens to the machine that a cell runs on."""
    cells.run("import time")
    run = cells.start("print('here', flush=True)\ntime.sleep(600)")
    run.follow(lambda event: happen())
    with pytest.raises(ClusterLost) as told:
        run.values()
    return str(told.value)


def test_a_failed_status_check_is_the_end_of_a_machine(
    start: Start, machines: Machines, account: Account
) -> None:
    cells = start(1, framework=False)

    def fail(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeInstanceStatus":
            body = answer.body.decode()
            before, mark, after = body.partition("<systemStatus>")
            answer.body = (before + mark + after.replace("ok", "impaired", 1)).encode()
        return answer

    def cut() -> None:
        account.fault = fail
        next(iter(machines.hosts.values())).cut()

    assert "it fails AWS's system status check" in lost(cells, cut)


def test_an_instance_that_was_terminated_elsewhere(
    start: Start, machines: Machines, clients: Clients
) -> None:
    cells = start(1, framework=False)
    [number] = machines.hosts
    said = lost(cells, lambda: clients.ec2.terminate_instances(InstanceIds=[number]) and None)
    assert "ended: it was terminated (User initiated shutdown). Run the cell again" in said


def test_what_is_left_of_a_lost_cluster_is_said_to_cost_money(
    start: Start, machines: Machines, clients: Clients
) -> None:
    cells = start(2, framework=False, spot=True, asked={"patience": PATIENCE})
    *_, last = machines.hosts
    said = lost(cells, lambda: clients.ec2.terminate_instances(InstanceIds=[last]) and None)
    assert said.endswith(f"goes on with another node while others are left. {rest_of(cells)}")


def rest_of(cells: Cells) -> str:
    """Return what is said of the node that is left of two."""
    name = cells.cluster.name
    return (
        f"Until then, what is left of {name} (1 node) costs $0.0776 an hour: `%sky down {name}` "
        "ends it, and it ends by itself after 1 h 00 min without a run."
    )


def test_another_takes_the_place_of_one_that_aws_took_away(
    start: Start, machines: Machines, clients: Clients
) -> None:
    # That a group is formed with one that takes a place is in the tests of SSH, with torch.
    cells = start(2, framework=False, replace=True, spot=True, max_cost=40)
    prepare(cells)
    first, second = machines.hosts
    clients.ec2.terminate_instances(InstanceIds=[second])
    with contextlib.suppress(RankLost):
        cells.run("pass")
    assert_is_whole(cells, 2, keep=[0, None], framework=False)
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=alive)["Reservations"]
    there = [each for reservation in found for each in reservation["Instances"]]
    assert first in [each["InstanceId"] for each in there]
    assert [each["InstanceLifecycle"] for each in there] == ["spot", "spot"]
    assert len({each["Placement"]["AvailabilityZone"] for each in there}) == 1


@pytest.mark.parametrize(
    ("agreed", "why"),
    [
        (
            {"ask_above": 0.2},
            r"2 × d3.xlarge spot for \$0.42 an hour .* is more than \$0.2, and there is nobody to "
            "ask: add `--max-price`",
        ),
        # The cluster is lost then, and cannot be scaled.
        (
            {"max_price": 0.3},
            r"2 nodes cost \$0.4\d* an hour, more than --max-price 0.3: start a new cluster with a "
            r"higher one\)",
        ),
    ],
)
def test_nothing_takes_a_place_for_more_than_was_agreed_to(
    start: Start,
    machines: Machines,
    clients: Clients,
    account: Account,
    agreed: dict[str, float],
    why: str,
) -> None:
    """It is when the price of spot rises that AWS takes instances back."""
    cells = start(2, framework=False, replace=True, spot=True, **agreed)
    prepare(cells)
    _, second = machines.hosts

    def rise(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeSpotPriceHistory":
            answer.body = re.sub(
                rb"(?<=<spotPrice>)[^<]+", lambda p: b"%f" % (3 * float(p[0])), answer.body
            )
        return answer

    account.fault = rise
    clients.ec2.terminate_instances(InstanceIds=[second])
    with contextlib.suppress(RankLost):
        cells.run("pass")
    with pytest.raises(SkyError, match=f"no node could replace .*{why}") as told:
        cells.run("pass")
    assert str(told.value).endswith(f"to start a new one. {rest_of(cells)}")
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=alive)["Reservations"]
    assert sum(len(each["Instances"]) for each in found) == 1


def test_who_has_spent_the_limit_hears_of_it_before_and_after(
    start: Start, machines: Machines
) -> None:
    """It ends all nodes: no other takes the place of one, and nothing is left that costs money."""
    cells = start(2, framework=False, replace=True, max_cost=40, watch_every=1)
    cells.run("import time\nstep = 0")
    cells.run(HOOK)
    run = cells.start("print('here', flush=True)\nwhile not saved: time.sleep(0.01)")

    def spend(seconds: float) -> None:
        for host in machines.hosts.values():
            host.run("sh", "-c", power_off_script(seconds))

    told: list[str] = []
    run.follow(lambda event: spend(100), notice=told.append)
    assert re.match(r"root@\S+ will end in 1:\d\d, when --max-cost is spent", told[0]), told
    assert {kind for [(kind, *_)] in cells.ask("saved[:1]")} == {"spent"}
    said = lost(cells, lambda: spend(1))
    assert said == (
        f"cluster {cells.cluster.name} has ended: its --max-cost is spent. Run the cell again to "
        "start a new one, which may cost as much once more."
    )
