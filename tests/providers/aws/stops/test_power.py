"""Machines that are stopped and started again keep their disks, and nothing else goes on."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import lifecycle
from jupyter_sky.cluster.cost_meter import CostMeter
from jupyter_sky.cluster.inventory import cloud_resources, registry, stops
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.cluster.inventory.stops import ClusterStopped
from jupyter_sky.cluster.inventory.storage import ledger
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.cluster.stopping.start import start_stopped
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.providers import providers
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import power, user_data
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.network import access, security_group
from jupyter_sky.transport import event_loop
from tests.cluster.conftest import Cells
from tests.lab import Lab
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in import faults
from tests.providers.aws.stand_in.account import IMAGE, Account, Answer, Call, refusal
from tests.providers.aws.stand_in.faults import denying
from tests.providers.aws.stand_in.machines import Machines, seconds_left
from tests.waiting import is_being_stopped

Left = Callable[[], list[str]]

PATIENCE = 60.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _end_stopped(account: Account) -> Iterator[None]:
    """End what a test has left stopped."""
    yield
    account.fault = None
    for row in registry.rows():
        if row.is_stopped:
            Cluster.remove(row, providers()[row.provider])


def row_of(cells: Cells) -> RegistryRow:
    row = registry.find(cells.cluster.name)
    assert row is not None
    return row


def phase_of(cells: Cells) -> ProbePhase:
    [found] = probe([row_of(cells)], providers())
    return found.phase


def stop(cells: Cells) -> None:
    cells.cluster.power.stop(cells.cluster.power.check_stop())


def start_again(cells: Cells, provider: AWS | None = None, money: float | None = None) -> Cells:
    """Start a cluster again, as another kernel would."""
    access._known.clear()
    row = row_of(cells)
    provider = provider or AWS(python=sys.executable, user="root")
    spec = registry.recorded_spec(row)
    started = start_stopped(row, spec, provider, cells.cluster.runtime_env, money=money)
    return Cells(started)


def stop_as_it_starts(cells: Cells, account: Account, denied: str = "") -> str:
    """Stop a start while its machines are told to end with their disks when they power off.

    Returns
    -------
    str
        What is said of it, where AWS denies an action from then on.
    """
    told = threading.Event()

    def interrupt(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.params.get("InstanceInitiatedShutdownBehavior.Value") == "terminate":
            told.set()
            until(lambda: is_being_stopped("start_machines"))
        return denying(denied)(call, carry_out) if told.is_set() else carry_out()

    account.fault = interrupt
    with event_loop.interrupted_by(told), pytest.raises(KeyboardInterrupt) as stopped:
        start_again(cells)
    account.fault = None
    return str(stopped.value)


def stop_as_it_is_recorded(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a start while it is written down that it begins."""
    begin, begun = stops.record_begin, threading.Event()

    def record(row: RegistryRow) -> CostMeter:
        begun.set()
        until(is_being_stopped)
        return begin(row)

    with monkeypatch.context() as slow, event_loop.interrupted_by(begun):
        slow.setattr(stops, "record_begin", record)
        with pytest.raises(KeyboardInterrupt):
            start_again(cells)
    assert not row_of(cells).is_starting
    assert row_of(cells).is_stopped


@contextlib.contextmanager
def nearly_up(monkeypatch: pytest.MonkeyPatch, at_last: Callable[[], None]) -> Iterator[None]:
    """Have machines boot at once, and something happen at the end of their start."""

    async def boot(self: AWS, spec: object, identity: str, machines: object, *more: object) -> Any:
        return machines

    async def get_ready(*about: object) -> None:
        at_last()

    with monkeypatch.context() as quick:
        quick.setattr(AWS, "start_machines", boot)
        quick.setattr(lifecycle, "get_ready", get_ready)
        yield


def stop_as_it_has_started(cells: Cells, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a start at its very end, when it can only be undone."""
    started = threading.Event()
    account.calls.clear()
    stopped = pytest.raises(KeyboardInterrupt)
    with nearly_up(monkeypatch, started.set), event_loop.interrupted_by(started), stopped:
        start_again(cells)
    assert "StopInstances" in account.actions
    assert row_of(cells).is_stopped


def fail_without_an_end(cells: Cells, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a start fail when its machines run, and AWS deny to stop them."""

    def fail() -> None:
        account.fault = denying("StopInstances")
        raise SkyError("it does not get ready.")

    says = "was ended, and its machines still run: .*ec2:StopInstances"
    with nearly_up(monkeypatch, fail), pytest.raises(SkyError, match=says):
        start_again(cells)
    account.fault = None
    assert not row_of(cells).is_stopped
    assert not row_of(cells).is_starting


def spend(cells: Cells, dollars: float) -> None:
    """Let the disks of a stopped cluster have cost so much more."""
    with registry.opened() as database:
        database.execute(
            "UPDATE clusters SET spec = json_set(spec, '$.meter[0]', "
            "json_extract(spec, '$.meter[0]') + ?) WHERE id = ?",
            (dollars, cells.cluster.id),
        )


def states(clients: Clients, cells: Cells) -> set[str]:
    ids = [each["id"] for each in row_of(cells).machines]
    found = clients.ec2.describe_instances(InstanceIds=ids)["Reservations"]
    return {each["State"]["Name"] for some in found for each in some["Instances"]}


def on_power_off(clients: Clients, cells: Cells) -> set[str]:
    return what_power_off_does(clients, [each["id"] for each in row_of(cells).machines])


def what_power_off_does(clients: Clients, ids: Sequence[str]) -> set[str]:
    name = "instanceInitiatedShutdownBehavior"
    said = [
        clients.ec2.describe_instance_attribute(InstanceId=each, Attribute=name) for each in ids
    ]
    return {each["InstanceInitiatedShutdownBehavior"]["Value"] for each in said}


def test_the_same_machines_come_back_at_new_addresses(
    start: Start, machines: Machines, lab: Lab, clients: Clients, left: Left
) -> None:
    machines.have_public_addresses()
    here = f"{lab.address}/32"
    cells = start(2, framework=False, addresses="public", ssh_from=here, max_cost=5, disk=500)
    cells.run("here = 1\nwith open('kept', 'w') as file: file.write('on the disk')")
    before = row_of(cells)
    hosts, shown = before.hosts, keys_of(before.id).of_instances()
    before_it = [seconds_left(host) for host in machines.hosts.values()]
    cost = cells.cluster.power.check_stop()
    price, money = cost.price, cost.left
    assert price == pytest.approx(2 * 500 * 0.08 / 730, rel=0.5), "of two disks"
    assert money == pytest.approx(5, abs=0.5)
    stop(cells)
    assert states(clients, cells) == {"stopped"}
    assert not any(host.is_up for host in machines.hosts.values())
    with pytest.raises(ClusterStopped, match="is stopped: `%sky start"):  # by another notebook
        cells.cluster.power.check_stop()
    assert phase_of(cells) is ProbePhase.STOPPED
    row = row_of(cells)
    assert row.price == price
    with pytest.raises(ClusterLost, match=r"is stopped: `%sky start .*` starts it again"):
        cells.run("here")
    with pytest.raises(ClusterStopped, match=f"`%sky start {row.name}` starts it again"):
        Cluster.attach(row, AWS(), RuntimeEnv({}))
    # What the disks have cost meanwhile is no longer there for the machines.
    spend(cells, 6.0)
    assert (stops.money_left(row_of(cells), time.time()) or 0.0) < 0
    with pytest.raises(UsageError, match=f"nothing is left .*`%sky start {row.name} --max-cost 5`"):
        start_again(cells)
    assert states(clients, cells) == {"stopped"}
    spend(cells, -4.0)
    again = start_again(cells)
    kept = again.ask("open('kept').read(), 'here' in globals()")
    assert kept == [("on the disk", False)] * 2
    after = row_of(cells)
    assert [each["id"] for each in after.machines] == [each["id"] for each in before.machines]
    assert not set(after.hosts) & set(hosts)
    assert keys_of(before.id).of_instances() == shown
    assert after.price == before.price
    assert on_power_off(clients, cells) == {"terminate"}
    hours = (money - 2.0) / (after.price or 0.0)
    for host, was in zip(machines.hosts.values(), before_it, strict=True):
        assert seconds_left(host) == pytest.approx(3600 * hours, rel=0.1)
        assert seconds_left(host) < was - 3600
    places = {each.place for each in registry.all_spent()}
    assert places == {"us-east-1", "us-east-1, disks of it stopped"}
    assert ledger.by_day(registry.all_spent(), 1)
    again.cluster.down()
    assert left() == []


def test_the_notebook_is_let_in_where_it_is_now(
    start: Start, machines: Machines, lab: Lab, clients: Clients
) -> None:
    machines.guard()
    cells = start(1, framework=False)
    stop(cells)
    [group] = security_group.find_groups(clients, cells.cluster.id)
    elsewhere = f"{lab.address.rpartition('.')[0]}.99/32"
    security_group.admit(clients, group, elsewhere)
    again = start_again(cells)
    # The notebook that has lost it leaves it alone, now that another has started it again.
    assert not cells.cluster.power.end_lost()
    assert again.ask("1 + 1") == [2]
    [group] = security_group.find_groups(clients, cells.cluster.id)
    assert list(security_group.who_may_log_in(group)) == [f"{lab.address}/32"]
    again.cluster.down()


def test_a_start_that_does_not_come_about_leaves_it_stopped(
    start: Start, account: Account, clients: Clients, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = start(2, framework=False)
    stop(cells)
    price, running = row_of(cells).price, row_of(cells).running_price
    seen: dict[str, float | None] = {}
    for code, says in (
        ("InsufficientInstanceCapacity", "AWS has no capacity for its instances in their zone"),
        ("VcpuLimitExceeded", "the account may have no more such instances"),
    ):

        def refuse(call: Call, carry_out: Callable[[], Answer], code: str = code) -> Answer:
            if "StartInstances" not in seen:
                seen[call.action] = row_of(cells).price
            asked = ("StartInstances", "DescribeVolumes")
            return refusal(code, "No.") if call.action in asked else carry_out()

        account.fault = refuse
        with pytest.raises(SkyError, match=f"stays stopped: {says}"):
            start_again(cells)
        account.fault = None
        assert states(clients, cells) == {"stopped"}
        assert phase_of(cells) is ProbePhase.STOPPED
        assert row_of(cells).price == pytest.approx(price)
    # Until they are started, and the user may be asked before, there are disks alone.
    assert seen["DescribeInstances"] == pytest.approx(price)
    assert seen["StartInstances"] == pytest.approx(running)
    assert not [each for each in cloud_resources.find()[0] if each.is_orphaned]
    stop_as_it_starts(cells, account)
    assert states(clients, cells) == {"stopped"}
    assert on_power_off(clients, cells) == {"stop"}, "as the next start may be killed"
    said = stop_as_it_starts(cells, account, denied="StopInstances")
    assert "may run for 15 minutes at most, and stop by themselves then: your AWS user" in said
    assert row_of(cells).is_stopped
    power.stop_again(clients, [each["id"] for each in row_of(cells).machines])
    stop_as_it_is_recorded(cells, monkeypatch)
    stop_as_it_has_started(cells, account, monkeypatch)
    fail_without_an_end(cells, account, monkeypatch)
    row = row_of(cells)
    Cluster.remove(row, AWS())
    assert left() == []
    assert registry.find(row.name) is None


@pytest.mark.parametrize("at_once", [True, False])
def test_a_notebook_hears_that_another_one_has_stopped_the_machines_and_replaces_none(
    start: Start, machines: Machines, account: Account, clients: Clients, at_once: bool
) -> None:
    cells = start(2, framework=False, replace=True)
    before, provider = row_of(cells), AWS(python=sys.executable, user="root")
    other = Cluster.attach(before, provider, cells.cluster.runtime_env)
    assert other is not None
    go_down, waits = account.on_stop, [before.machines[1]["id"]]

    def go_down_late() -> None:
        until(lambda: not other.alive)
        go_down(*waits)

    if not at_once:
        account.on_stop = lambda each: None if each in waits else go_down(each)
        threading.Thread(target=go_down_late).start()
    stop(cells)
    until(lambda: not other.alive)
    with pytest.raises(ClusterLost, match=r"^cluster .* is stopped: `%sky start .*` starts it"):
        Cells(other).run("pass")
    other.close()
    assert states(clients, cells) == {"stopped"}
    assert row_of(cells).hosts == before.hosts
    # Where AWS has forgotten one of several, it describes none of them.
    gone = "i-0123456789abcdef0"
    with pytest.raises(SkyError, match=f"^{gone} of it has ended, and its disk with it: end the"):
        power.wait_until_stopped(clients, [gone, *machines.hosts], print)


def test_where_aws_denies_it_the_cluster_goes_on(
    start: Start, account: Account, clients: Clients
) -> None:
    cells = start(1, framework=False)
    cells.run("here = 1")
    for action in ("ModifyInstanceAttribute", "StopInstances"):
        account.fault = denying(action)
        with pytest.raises(SkyError, match=f"may not do ec2:{action}"):
            stop(cells)
        account.fault = None
        assert cells.ask("here") == [1]
        assert on_power_off(clients, cells) == {"terminate"}


@pytest.mark.parametrize("autostop", [False, True])
@pytest.mark.parametrize("denied", ["StopInstances", "ModifyInstanceAttribute"])
def test_a_power_off_does_what_it_did_where_aws_denies_a_stop(
    account: Account, clients: Clients, subnet: str, denied: str, autostop: bool
) -> None:
    """With --autostop that keeps the disks, and else nothing of them is left to be paid for."""
    made = clients.ec2.run_instances(ImageId=IMAGE, MinCount=2, MaxCount=2, SubnetId=subnet)
    ids = [each["InstanceId"] for each in made["Instances"]]
    before = "stop" if autostop else "terminate"
    power.on_power_off(clients, ids, before)

    def deny_once(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        last = call.params.get("InstanceId", ids[-1]) == ids[-1]
        if call.action != denied or not last:
            return carry_out()
        account.fault = None
        return faults.denied(call)

    account.fault = deny_once
    with pytest.raises(SkyError, match=f"may not do ec2:{denied}"):
        power.stop(clients, ids, autostop)
    assert what_power_off_does(clients, ids) == {before}
    clients.ec2.terminate_instances(InstanceIds=ids)


def test_a_cluster_that_cannot_be_stopped_says_what_to_do(start: Start, machines: Machines) -> None:
    cells = start(1, framework=False, spot=True)
    with pytest.raises(UsageError, match="AWS stops no spot instances: bring what you need with"):
        cells.cluster.power.check_stop()
    cells.run("import time")
    cells.start("time.sleep(600)")
    until(lambda: any(rank.run for rank in cells.cluster.state.ranks))
    with pytest.raises(UsageError, match="is busy: stop it when the run is over"):
        cells.cluster.power.check_stop()


def test_autostop_keeps_the_disks(
    start: Start, machines: Machines, clients: Clients, monkeypatch: pytest.MonkeyPatch, left: Left
) -> None:
    monkeypatch.setattr(user_data, "NEXT_AGENT_WITHIN", 1)
    # Long enough to be seen by a machine that looks every second; one that has seen no agent waits
    # for minutes.
    asked = {"autostop": True, "idle_timeout": 3.0}
    cells = start(1, framework=False, watch_every=1, asked=asked)
    [host] = machines.hosts.values()
    assert on_power_off(clients, cells) == {"stop"}
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(host.pid).wait(PATIENCE)
    with pytest.raises(ClusterLost, match="stopped itself: .* `%sky start .*` starts it again"):
        cells.run("here = 1")
    # What a notebook does with a cluster that is lost does nothing to this one.
    with pytest.raises(ClusterStopped, match="`%sky start"):
        cells.cluster.power.end_lost()
    cells.cluster.close()
    until(lambda: states(clients, cells) == {"stopped"})
    assert phase_of(cells) is ProbePhase.STOPPED
    assert row_of(cells).price
    assert not [each for each in cloud_resources.find()[0] if each.is_orphaned]
    again = start_again(cells)
    assert again.ask("1 + 1") == [2]
    assert on_power_off(clients, cells) == {"stop"}
    again.cluster.down()
    assert left() == []
