"""Whoever may not look may still end: instances whose ids are known go first."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator

import pytest

from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.aws import rented, retries
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.tags import ID, REQUEST, tag_specification
from jupyter_sky.providers.aws.teardown import release
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import (
    IMAGE,
    Account,
    Answer,
    Call,
    CutConnection,
    Fault,
    refusal,
)
from tests.providers.aws.stand_in.faults import denying, failing
from tests.providers.aws.starting import SPEC, provider, start

Left = Callable[[], list[str]]

LOOKS = {
    "DescribeSpotInstanceRequests": True,
    "DescribeVolumes": True,
    "DescribeInstances": True,
    "DescribeSecurityGroups": False,
    "DescribeKeyPairs": False,
    "DescribePlacementGroups": False,
}
"""What is looked for, and whether something could be left that is known by no name."""


@pytest.fixture
def ready(account: Account, subnet: str) -> str:
    provider(subnet).check(SPEC, [])
    account.calls.clear()
    return subnet


@pytest.fixture
def clean(clients: Clients) -> Iterator[None]:
    yield
    import asyncio

    for held in cloud_resources.find()[0]:
        asyncio.run(provider("").release_cluster(held.resources.id, None, lambda text: None))


def running(clients: Clients) -> int:
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=alive)["Reservations"]
    return sum(len(each["Instances"]) for each in found)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("action", "may_be_left"), LOOKS.items())
def test_no_look_that_is_denied_keeps_instances(
    account: Account, ready: str, clients: Clients, left: Left, action: str, may_be_left: bool
) -> None:
    # Everything after `RunInstances` is refused that only looks for this.
    account.fault = denying(action)
    with pytest.raises(SkyError) as caught:
        start(ready)
    account.fault = None
    assert account.actions.count("RunInstances") == 1
    ended = account.actions.index("TerminateInstances")
    assert not [each for each in account.actions[ended + 1 :] if each == "RunInstances"]
    assert running(clients) == 0
    if may_be_left:
        assert f"your AWS user may not do ec2:{action}" in str(caught.value)
        assert registry.find("train") is not None, "what may be there is not forgotten"
        account.fault = denying(action)
        _, trouble = cloud_resources.find()
        assert any(f"ec2:{action}" in sentence for sentence in trouble)
        account.fault = None
        for rental in cloud_resources.find()[0]:
            rental.remove()
    assert left() == []
    assert registry.find("train") is None
    assert not (home() / "aws" / "rented").is_dir() or not [*(home() / "aws" / "rented").iterdir()]


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("action", ["DeleteKeyPair", "CancelSpotInstanceRequests"])
def test_no_step_that_is_denied_keeps_another_from_being_made(
    account: Account, ready: str, clients: Clients, left: Left, action: str
) -> None:
    account.fault = denying(action)
    with pytest.raises(SkyError) as caught:
        start(ready, spot=True)
    account.fault = None
    asked = account.actions[account.actions.index("TerminateInstances") :]
    assert {"DeleteSecurityGroup", "DeletePlacementGroup"} <= {*asked}
    if action in asked:
        assert f"ec2:{action}" in str(caught.value)
    for rental in cloud_resources.find()[0]:
        rental.remove()
    assert left() == []


@pytest.mark.usefixtures("clean")
def test_gc_ends_what_is_known_where_it_may_not_look(
    account: Account, ready: str, clients: Clients, left: Left
) -> None:
    account.fault = failing("TerminateInstances")
    with pytest.raises(SkyError, match="something may still be there and cost money"):
        start(ready)
    assert running(clients) == 4
    account.fault = denying("DescribeInstances")
    [rental], _ = cloud_resources.find()
    with pytest.raises(SkyError, match="your AWS user may not do ec2:DescribeInstances"):
        rental.remove()
    account.fault = lambda call, carry_out: refusal("RequestExpired", "it is too late")
    _, trouble = cloud_resources.find()
    assert trouble == [
        "not everything in us-east-1 can be looked at: your session with AWS has expired: run "
        "`aws sso login` in a terminal, then the cell."
    ]
    account.fault = None
    assert running(clients) == 0


def release_all(clients: Clients, ids: list[str]) -> None:
    release.release(clients, "0123abcd", lambda text: None)


def terminate(clients: Clients, ids: list[str]) -> None:
    release.terminate(clients, "0123abcd", ids)


def terminate_by_request(clients: Clients, ids: list[str]) -> None:
    release.terminate(clients, "0123abcd", [], "a-request")


@pytest.mark.parametrize("end", [release_all, terminate, terminate_by_request])
def test_one_that_aws_does_not_know_yet_is_not_gone(
    account: Account, ready: str, clients: Clients, left: Left, end: Callable[..., None]
) -> None:
    specification = tag_specification(
        ("instance", "volume"), {ID: "0123abcd", REQUEST: "a-request"}
    )
    made = clients.ec2.run_instances(
        ImageId=IMAGE, MinCount=2, MaxCount=2, SubnetId=ready, TagSpecifications=specification
    )
    ids = [each["InstanceId"] for each in made["Instances"]]
    rented.note("0123abcd", ids)
    looks: list[str] = []

    def hide(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        looks.append(call.action)
        if looks.count("DescribeInstances") > 2:
            return carry_out()
        if call.action == "TerminateInstances":
            return refusal("InvalidInstanceID.NotFound", "The instance IDs do not exist")
        if call.action in ("DescribeInstances", "DescribeVolumes"):
            nothing = "<reservationSet/><volumeSet/>"
            return Answer(f"<{call.action}Response>{nothing}</{call.action}Response>".encode())
        return carry_out()

    account.fault = hide
    end(clients, ids)
    assert left() == []
    assert rented.instances("0123abcd") == []


def test_one_that_aws_does_not_know_any_more_keeps_no_other(
    account: Account, ready: str, clients: Clients, left: Left
) -> None:
    note = rented.note
    rented_before: list[str] = []

    def with_another(identity: str, ids: list[str]) -> None:
        note(identity, ["i-0123456789abcdef0", *ids])
        if not rented_before:
            rented_before.append(identity)
            rented.acknowledge(identity, ["i-0123456789abcdef0"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rented, "note", with_another)
        with pytest.raises(SkyError):
            start(ready)
    assert rented_before
    assert running(clients) == 0
    assert left() == []


@pytest.mark.usefixtures("clean")
def test_one_that_is_protected_from_its_end_keeps_no_other(
    account: Account, ready: str, clients: Clients, left: Left
) -> None:
    """AWS ends none of several in a zone where it may not end one of them."""
    protected: list[str] = []

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances" and {*protected}.intersection(call.params.values()):
            text = f"The instance '{protected[0]}' may not be terminated. Modify its"
            return refusal("OperationNotPermitted", f"{text} 'disableApiTermination' attribute")
        answer = carry_out()
        if call.action == "RunInstances":
            protected.append(re.findall(rb"<instanceId>(i-\w+)<", answer.body)[2].decode())
        return answer

    account.fault = refuse
    with pytest.raises(SkyError) as caught:
        start(ready)
    assert f"The instance '{protected[0]}' may not be terminated" in str(caught.value)
    assert "something may still be there and cost money" in str(caught.value)
    assert running(clients) == 1
    assert registry.find("train") is not None
    account.fault = None
    [rental], _ = cloud_resources.find()
    rental.remove()
    assert left() == []


def expired(call: Call, carry_out: Callable[[], Answer]) -> Answer:
    return refusal("RequestExpired", "Request has expired.")


def offline(call: Call, carry_out: Callable[[], Answer]) -> Answer:
    raise CutConnection


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("fault", "why", "tries"),
    [
        (expired, "your session with AWS has expired: run `aws sso login`", 4),
        (offline, "AWS cannot be reached", retries.ATTEMPTS),
    ],
)
def test_who_cannot_ask_aws_is_told_what_runs_and_until_when(
    account: Account,
    ready: str,
    clients: Clients,
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    why: str,
    tries: int,
) -> None:
    """And it is told soon: whoever is offline has waited for a quarter of an hour."""
    monkeypatch.setattr(retries, "_LONGEST_PAUSE", 0.01)

    def lose_aws() -> None:
        account.calls.clear()
        account.fault = fault

    with pytest.raises(SkyError) as caught:
        start(ready, on_boot=lose_aws)
    account.fault = None
    # The provider gives back what it has rented, and the cluster once more.
    assert account.actions.count("TerminateInstances") == 2 * tries
    if fault is offline:
        assert {*account.actions} == {"TerminateInstances"}
    assert running(clients) == 4
    said = str(caught.value)
    [row] = registry.rows()
    for each in rented.instances(row.id):
        assert each in said
    assert (
        f" of cluster {row.id} in us-east-1; what runs without an agent ends by itself within 10 "
        f"minutes), type `%sky gc` to try again: {why}" in said
    )
    [rental], _ = cloud_resources.find()
    rental.remove()
    assert left() == []


def test_what_runs_costs_something_also_where_the_session_expires_at_once(
    account: Account, ready: str, left: Left
) -> None:
    is_over = False

    def expire(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        nonlocal is_over
        answer = expired(call, carry_out) if is_over else carry_out()
        is_over |= call.action == "RunInstances"
        return answer

    account.fault = expire
    with pytest.raises(SkyError, match="your session with AWS has expired"):
        start(ready)
    account.fault = None
    [row] = registry.rows()
    assert row.rent is not None
    assert row.price and row.rent.nodes == 4
    [rental], _ = cloud_resources.find()
    rental.remove()
    spent = [each for each in registry.all_spent() if each.since == row.meter.since]
    assert [(each.name, each.nodes, each.dollars > 0) for each in spent] == [("train", 4, True)]
    assert left() == []


def test_down_goes_on_where_the_registry_cannot_be_written(
    start: Start, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = start(1, framework=False)
    monkeypatch.setattr(registry, "WAIT", 0.1)
    other = sqlite3.connect(home() / "registry.sqlite")
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(SkyError, match="was ended, but it is still in the registry"):
            cells.cluster.down()
        assert running(clients) == 0
    finally:
        other.close()
    cells.cluster.down()
    assert registry.find(cells.cluster.name) is None
