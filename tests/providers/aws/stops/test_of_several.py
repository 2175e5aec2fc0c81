"""Instances that are started and stopped, and what AWS says of them meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws import rented
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import power
from jupyter_sky.providers.aws.ec2.launch import wait_for_addresses
from jupyter_sky.providers.aws.teardown import release
from tests.providers.aws.stand_in.account import IMAGE, Account, Answer, Call, refusal
from tests.providers.aws.stand_in.faults import denying


@pytest.fixture
def ids(clients: Clients, subnet: str, account: Account) -> Iterator[list[str]]:
    """Two instances that run."""
    made = clients.ec2.run_instances(ImageId=IMAGE, MinCount=2, MaxCount=2, SubnetId=subnet)
    found = [each["InstanceId"] for each in made["Instances"]]
    yield found
    account.fault = None
    clients.ec2.terminate_instances(InstanceIds=found)


def states(clients: Clients, ids: list[str]) -> list[str]:
    found = clients.ec2.describe_instances(InstanceIds=ids)["Reservations"]
    said = {
        each["InstanceId"]: each["State"]["Name"] for some in found for each in some["Instances"]
    }
    return [said[each] for each in ids]


def test_what_has_been_started_may_be_said_to_be_stopped_for_a_moment(
    clients: Clients, account: Account, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.ec2.stop_instances(InstanceIds=ids)
    looks = 0

    def late(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        nonlocal looks
        answer = carry_out()
        if call.action == "DescribeInstances" and (looks := looks + 1) <= 2:
            answer.body = answer.body.replace(b"<name>running</name>", b"<name>stopped</name>")
        return answer

    power.start(clients, ids, "")
    account.fault = late
    found = wait_for_addresses(clients, ids, True, "x", lambda text: None, were_stopped=True)
    assert {each["State"]["Name"] for each in found} == {"running"}
    assert looks == 3
    # An instance that has stopped again is not waited for, nor is a new one.
    for seconds, were_stopped in ((0.0, True), (60.0, False)):
        monkeypatch.setattr(rented, "KNOWN_WITHIN", seconds)
        looks = 0
        with pytest.raises(SkyError, match="an instance ended while it started"):
            wait_for_addresses(
                clients, ids, True, "x", lambda text: None, were_stopped=were_stopped
            )


def test_one_that_shuts_down_is_not_waited_for(
    clients: Clients, account: Account, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones take minutes for that, in which another has taken their place."""
    is_told = False

    def shut_down(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        nonlocal is_told
        is_told = is_told or call.action == "TerminateInstances"
        if call.action == "TerminateInstances":
            states = "<currentState><code>32</code><name>shutting-down</name></currentState>"
            items = "".join(f"<item><instanceId>{each}</instanceId>{states}</item>" for each in ids)
            return Answer(
                f"<TerminateInstancesResponse><instancesSet>{items}</instancesSet>"
                "</TerminateInstancesResponse>".encode()
            )
        asked = call.params.values()
        if call.action != "DescribeInstances" or not is_told:
            return carry_out()
        if "running" in asked and "shutting-down" not in asked:
            return Answer(
                b"<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"
            )
        answer = carry_out()
        answer.body = answer.body.replace(b"<name>running</name>", b"<name>shutting-down</name>")
        return answer

    monkeypatch.setattr(release, "GONE_WITHIN", 1.0)
    account.fault = shut_down
    release.terminate(clients, "0badcafe", ids)
    assert is_told


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_those_that_are_there_are_stopped_again(
    clients: Clients, account: Account, ids: list[str], is_forgotten: bool
) -> None:
    gone, there = ids
    clients.ec2.terminate_instances(InstanceIds=[gone])
    power.on_power_off(clients, [there], "terminate")
    code = "InvalidInstanceID.NotFound" if is_forgotten else "IncorrectInstanceState"

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        """Refuse the whole list for one, as AWS does."""
        changes = call.action in ("StopInstances", "ModifyInstanceAttribute")
        return refusal(code, "No.") if changes and gone in call.params.values() else carry_out()

    account.fault = refuse
    power.stop_again(clients, ids)
    account.fault = None
    assert states(clients, ids) == ["terminated", "stopped"]
    name = "instanceInitiatedShutdownBehavior"
    said = clients.ec2.describe_instance_attribute(InstanceId=there, Attribute=name)
    assert said["InstanceInitiatedShutdownBehavior"]["Value"] == "stop"


def test_one_that_may_run_on_is_said(clients: Clients, account: Account, ids: list[str]) -> None:
    booting, other = ids

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        is_asked = call.action == "StopInstances" and booting in call.params.values()
        return refusal("IncorrectInstanceState", "No.") if is_asked else carry_out()

    account.fault = refuse
    with pytest.raises(SkyError, match=f"^{booting} may run for 15 minutes at most, and stop by"):
        power.stop_again(clients, ids)
    account.fault = denying("StopInstances")
    with pytest.raises(SkyError, match=f"^{booting}, {other} may run for 15 minutes at most"):
        power.stop_again(clients, ids)
    account.fault = None
    assert states(clients, ids) == ["running", "stopped"]
