"""Instances join a cluster, and leave it: rented like the others, and given back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import scaling
from jupyter_sky.cluster.cost_meter import CostMeter
from jupyter_sky.cluster.inventory import joining_cost, registry
from jupyter_sky.cluster.inventory.row_updates import record_line
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.attached import attach
from jupyter_sky.notebook.cluster_factory import ClusterFactory, asking_above
from jupyter_sky.notebook.config import Sky
from jupyter_sky.paths import home
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.user_data import power_off_script
from jupyter_sky.providers.progress import Rented
from tests.cluster.control.test_scaling import assert_is_whole, prepare
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.stand_in.faults import without_spot_price
from tests.providers.aws.stand_in.machines import Machines, seconds_left

DISK = 100 * 0.08 / 730
"""Dollars an hour of the disk of each."""


def running(clients: Clients) -> int:
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=alive)["Reservations"]
    return sum(len(each["Instances"]) for each in found)


def test_instances_come_and_go(
    start: Start, machines: Machines, clients: Clients, account: Account, left: Callable[[], list]
) -> None:
    cells = start(2, max_cost=40)
    prepare(cells)
    before = [seconds_left(host) for host in hosts(machines)]
    # As if it had been up for ten hours.
    cells.cluster._controller.cost.meter = CostMeter(0.0, time.time() - 36000)
    cells.cluster.scale(4)
    assert_is_whole(cells, 4, keep=[0, 1, None, None])
    assert cells.cluster.price == pytest.approx(0.8 + 4 * DISK)
    cost = cells.cluster.snapshot()["cluster"]["cost"]
    assert cost == pytest.approx(4.0, rel=0.1), "what came later did not cost earlier"
    row = registry.find(cells.cluster.name)
    assert row is not None
    spent, since = row.meter.spent, row.meter.since
    assert row.cost(since + 3600) == pytest.approx(spent + 0.8 + 4 * DISK)
    assert running(clients) == 4
    asked = [call.params for call in account.calls if call.action == "RunInstances"]
    same = ("InstanceType", "KeyName", "Placement.AvailabilityZone", "ImageId")
    assert [asked[0][name] for name in same] == [asked[1][name] for name in same]
    # The money is spent twice as fast.
    limits = [seconds_left(host) for host in hosts(machines)]
    for limit in before:
        assert limits[0] == pytest.approx(limit / 2, rel=0.01)
    assert max(limits) - min(limits) < 60
    cells.cluster.scale(1)
    assert_is_whole(cells, 1, keep=[0])
    assert cells.cluster.price == pytest.approx(0.2 + DISK)
    [limit] = [seconds_left(host) for host in hosts(machines)]
    assert limit == pytest.approx(4 * limits[0], rel=0.01), "the rest of the money lasts longer"
    assert running(clients) == 1
    assert [host.is_up for host in machines.hosts.values()] == [True, False, False, False]
    cells.cluster.down()
    assert left() == []


def test_machines_cost_something_while_they_boot(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = start(1, framework=False)
    hour = 0.2 + DISK

    late, fails = 0.0, True
    monkeypatch.setattr(joining_cost, "time", SimpleNamespace(time=lambda: time.time() + late))

    def say(text: object) -> None:
        """Let booting take an hour, as of which the agents and this process know nothing."""
        nonlocal late
        if isinstance(text, Rented):
            late += 3600
        elif text == "checking the network" and fails:
            raise SkyError("enough")

    with pytest.raises(SkyError, match="enough"):
        cells.cluster.scale(2, progress=say)
    assert cells.cluster.snapshot()["cluster"]["cost"] == pytest.approx(hour, rel=0.1)
    fails = False
    cells.cluster.scale(2, progress=say)
    assert cells.cluster.snapshot()["cluster"]["cost"] == pytest.approx(2 * hour, rel=0.1)
    row = registry.find(cells.cluster.name)
    assert row is not None
    assert row.meter.spent == pytest.approx(2 * hour, rel=0.1)
    booted = [each for each in registry.all_spent() if each.place.endswith(", to join it")]
    assert sum(each.dollars for each in booted) == pytest.approx(2 * hour, rel=0.1)


def test_what_was_rented_is_given_back_where_nobody_can_be_told(
    start: Start, clients: Clients
) -> None:
    """As of ``jupyter sky scale 2 2>&1 | head -1``, whose output nobody reads any more."""
    cells = start(1, framework=False)
    is_read = True

    def say(text: object) -> None:
        nonlocal is_read
        is_read = is_read and not str(text).endswith("to boot")
        if not is_read:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        cells.cluster.scale(2, progress=say)
    assert not is_read
    assert running(clients) == 1


def hosts(machines: Machines) -> list:
    return [host for host in machines.hosts.values() if host.is_up]


def test_what_aws_has_not_leaves_the_cluster_as_it_was(
    start: Start, clients: Clients, account: Account
) -> None:
    cells = start(1, framework=False, max_cost=40)
    prepare(cells)

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            return refusal("InsufficientInstanceCapacity", "We do not have enough")
        return carry_out()

    account.fault = refuse
    with pytest.raises(
        SkyError, match="1 node: AWS has no capacity for 1 more × d3.xlarge in us-eas"
    ):
        cells.cluster.scale(2)
    assert_is_whole(cells, 1, keep=[0], framework=False)
    assert running(clients) == 1

    def forget(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "DescribeInstances" and "InstanceId.1" in call.params:
            return refusal("InvalidInstanceID.NotFound", "The instance ID 'i-0' does not exist")
        return carry_out()

    account.fault = forget
    with pytest.raises(SkyError, match=r"AWS no longer knows the instance i-\w+: end the clu"):
        cells.cluster.scale(2)
    account.fault = None
    # Another notebook ends the cluster meanwhile, and its keys with it.
    keys = keys_of(cells.cluster.id).folder
    gone = keys.rename(keys.with_name("gone"))
    with pytest.raises(SkyError, match="keys of the cluster are gone: it was ended from elsewhere"):
        cells.cluster.scale(2)
    gone.rename(keys)
    assert running(clients) == 1


def test_the_money_is_what_is_left_when_the_notebook_has_slept(
    start: Start, machines: Machines, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = start(1, framework=False, max_cost=40, ask_above=0.3)
    [host] = hosts(machines)
    began, before = time.monotonic(), seconds_left(host)

    def sleep() -> None:
        """An hour goes by for the instance, and none for the computer of the notebook."""
        host.run("sh", "-c", power_off_script(seconds_left(host) - 3600))

    def answer(text: str) -> str:
        sleep()
        return "y"

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            limits.append(seconds_left(host))
            sleep()
            return refusal("InsufficientInstanceCapacity", "We do not have enough")
        return carry_out()

    limits: list[float] = []
    monkeypatch.setattr("builtins.input", answer)
    account.fault = refuse
    with pytest.raises(SkyError, match="AWS has no capacity for 1 more"):
        cells.cluster.scale(2)
    took = time.monotonic() - began + 5
    assert (before - 3600) / 2 - took < limits[0] <= (before - 3600) / 2 + 1
    assert before - 7200 - took < seconds_left(host) <= before - 7200 + 2


def test_the_money_lasts_as_long_as_before_where_a_new_node_does_not_join(
    start: Start, machines: Machines, clients: Clients
) -> None:
    cells = start(1, framework=False, max_cost=40)
    [host] = hosts(machines)
    before = seconds_left(host)

    def end(text: object) -> None:
        if text == "checking the network":
            limits.append(seconds_left(host))
            raise SkyError("enough")

    limits: list[float] = []
    with pytest.raises(SkyError, match="enough"):
        cells.cluster.scale(2, progress=end)
    assert limits[0] == pytest.approx(before / 2, rel=0.01)
    assert seconds_left(host) == pytest.approx(before, rel=0.01)
    assert running(clients) == 1


def test_each_disk_of_a_new_node_is_paid_from_the_money_that_is_left(
    start: Start, machines: Machines, clients: Clients, account: Account
) -> None:
    def with_data(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        """Have an image of the user's bring data on a disk that costs as much as the instance."""
        answer = carry_out()
        if call.action == "DescribeImages":
            data = (
                b"<item><deviceName>/dev/sdf</deviceName><ebs><volumeSize>2000</volumeSize></ebs>"
                b"</item></blockDeviceMapping>"
            )
            answer.body = answer.body.replace(b"</blockDeviceMapping>", data)
        return answer

    account.fault = with_data
    cells = start(1, framework=False, max_cost=40)
    [host] = hosts(machines)
    before = seconds_left(host)
    [[node]] = [each["Instances"] for each in clients.ec2.describe_instances()["Reservations"]]
    own = clients.ec2.create_volume(AvailabilityZone="us-east-1a", Size=9000)["VolumeId"]
    there = node["InstanceId"]
    clients.ec2.attach_volume(VolumeId=own, InstanceId=there, Device="/dev/sdz")  # by the user
    cells.cluster.scale(2)
    assert seconds_left(host) == pytest.approx(before / 2, rel=0.01)
    assert cells.cluster.price == pytest.approx(0.4 + 2 * 21 * DISK)


def test_the_money_lasts_as_long_as_before_where_a_kernel_dies_as_a_node_joins(
    start: Start, machines: Machines, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = start(1, framework=False, max_cost=40)
    [host] = hosts(machines)
    before = seconds_left(host)

    def die(text: object) -> None:
        if text == "checking the network":
            raise SkyError("enough")

    async def do_nothing(expansion: scaling._Expansion) -> None:
        """Leave all as it is, as a kernel does that is killed."""

    with monkeypatch.context() as killed:
        killed.setattr(scaling._Expansion, "roll_back", do_nothing)
        with pytest.raises(SkyError, match="enough"):
            cells.cluster.scale(2, progress=die)
    assert seconds_left(host) == pytest.approx(before / 2, rel=0.01)
    cells.cluster.close()
    row = registry.find(cells.cluster.name)
    assert row is not None
    # Nothing is spent twice where two others find it at the same time.
    for _ in range(2):
        taken = Cluster.attach(row, cells.cluster.provider, cells.cluster.runtime_env)
        assert taken is not None
        assert running(clients) == 1
        assert seconds_left(host) == pytest.approx(before, rel=0.01)
        taken.close()


def test_max_price_holds_for_all_nodes_together(
    start: Start, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = start(1, framework=False, instance_type="d3.2xlarge")
    # There are cheaper ones, but those that join are like the first.
    provider = replace(cells.cluster.provider, instance_type=None, max_price=1.3)
    name = f"--cluster {cells.cluster.name}"
    sentence = (
        f"more than --max-price 1.3: type `%sky scale 3 {name}`, or accept it, as with "
        f"`%sky scale 4 --max-price 1.65 {name}`"
    )
    with pytest.raises(UsageError, match=rf"4 nodes cost \$1.65 an hour, {sentence}"):
        cells.cluster.scale(4, provider)
    cells.cluster.scale(3, provider)
    with pytest.raises(UsageError, match=r"more than --max-price 1.3: accept it"):
        cells.cluster.scale(4, provider)
    # Who has said nothing of it is asked.
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "n")
    with pytest.raises(UsageError, match="nothing was started"):
        cells.cluster.scale(4, replace(provider, max_price=None, ask_above=1.5))
    assert questions == [
        "Start 4 × d3.2xlarge for $1.64 an hour in us-east-1, account 123456789012? [y/N] "
    ]
    assert running(clients) == 3
    # Who has agreed to the price in a dialog is not.
    asking = replace(provider, max_price=None, ask_above=1.5)
    cells.cluster.scale(4, asking_above(asking, cells.cluster.price / 3 * 4))
    assert len(questions) == 1
    assert running(clients) == 4


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"max_cost": 40}, "another node there now, so --max-cost cannot be kept: try later"),
        ({"max_price": 40}, "d3.xlarge there now, so --max-price cannot be kept: try later"),
    ],
)
def test_no_limit_holds_where_the_price_is_not_known(
    start: Start, clients: Clients, account: Account, limit: dict[str, float], sentence: str
) -> None:
    cells = start(1, framework=False, spot=True, ask_above=float("inf"), **limit)
    account.fault = without_spot_price("us-east-1a")
    with pytest.raises(SkyError, match=f"AWS gives no price for {sentence}"):
        cells.cluster.scale(2)
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
    from tests.cluster.conftest import Cells

    cells = start(1, framework=False)
    row = registry.find(cells.cluster.name)
    assert row is not None
    # What was said when it was started is not known there.
    provider = replace(cells.cluster.provider, subnet=None, addresses="public")
    taken = Cluster.attach(row, provider, cells.cluster.runtime_env)
    assert taken is not None
    taken.scale(2)
    assert running(clients) == 2
    assert Cells(taken).ask("1 + 1") == [2, 2]
    taken.down()
    assert not (home() / "aws" / "keys" / taken.id).exists()


def test_nodes_that_join_a_cluster_of_another_kernel_follow_its_settings(
    start: Start, clients: Clients, account: Account
) -> None:
    cells = start(1, framework=False, disk=150, instance_type="d3.2xlarge")
    record_line(cells.cluster.id, "--provider aws --nodes 1 --max-price 1.3")
    row = registry.find(cells.cluster.name)
    assert row is not None
    settings = Sky(python=sys.executable, aws={"addresses": "private"})
    taken, _ = attach(row, settings.timeouts(), ClusterFactory(settings).provider)
    assert taken is not None
    # Without settings of its own, as where nodes take the place of lost ones.
    with pytest.raises(UsageError, match=r"4 nodes cost \$1.67 an hour, more than --max-price 1.3"):
        taken.scale(4)
    taken.scale(2)
    sizes = {
        call.params["BlockDeviceMapping.1.Ebs.VolumeSize"]
        for call in account.calls
        if call.action == "RunInstances"
    }
    assert sizes == {"150"}
    taken.close()
