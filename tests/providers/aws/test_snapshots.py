"""Images of prepared nodes: made, found again, said what they cost, and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jupyter_sky.cluster.inventory import cloud_resources
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import AWS, local_store
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.market.confirmation import ask
from jupyter_sky.providers.diagnosis import CheckResult
from tests.cluster.conftest import Cells
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in import iam
from tests.providers.aws.stand_in.account import (
    IMAGE,
    Account,
    Answer,
    Call,
    CutConnection,
    refusal,
)
from tests.providers.aws.stand_in.faults import failing
from tests.providers.aws.stand_in.machines import Machines


@pytest.fixture(autouse=True)
def _none_left(clients: Clients) -> Iterator[None]:
    yield
    for each in snapshots.every(clients):
        snapshots.remove(clients, each.name)


def head_of(cells: Cells) -> Instance:
    from jupyter_sky.cluster.inventory import registry

    row = registry.find(cells.cluster.name)
    assert row is not None
    return Instance.from_row(row.machines[0])


def make(clients: Clients, cells: Cells) -> snapshots.NodeSnapshot:
    head = head_of(cells)
    head.flush()
    return snapshots.make(clients, head.id, head.content, "root", lambda text: None)


def test_the_next_cluster_boots_from_what_was_prepared(
    start: Start, machines: Machines, clients: Clients, account: Account
) -> None:
    first = start(1, framework=False)
    first.run("from pathlib import Path\n(Path.home() / 'prepared').write_text('yes')")
    first.run("(Path.home() / '.ssh').mkdir()\n(Path.home() / '.ssh/authorized_keys').touch()")
    made = make(clients, first)
    first.cluster.down()
    said: list[str] = []
    second = start(1, framework=False, say=lambda text: said.append(str(text)))
    assert f"taking the snapshot {made.name}" in said
    [asked] = [call for call in account.calls if call.action == "RunInstances"][1:]
    assert asked.params["ImageId"] == made.image
    second.run("from pathlib import Path")
    assert second.ask("(Path.home() / 'prepared').read_text()") == ["yes"]
    # The lab's hosts share this machine's disk, so that what they are told is all there is to see.
    told = machines.user_data[list(machines.hosts)[1]]["bootcmd"]
    assert told[0][:2] == ["cloud-init-per", "instance"]
    assert "/root/.ssh/authorized_keys" in told[0][-1]
    second.cluster.scale(2)
    assert machines.user_data[list(machines.hosts)[2]]["bootcmd"][0] == told[0]
    with pytest.raises(UsageError, match=f"`%sky snapshot --remove {made.name}` removes it"):
        make(clients, second)
    # Something else is installed: it does not fit.
    account.calls.clear()
    start(1, framework=False, image_id="ami-1e749f67")
    [asked] = [call for call in account.calls if call.action == "RunInstances"]
    assert asked.params["ImageId"] == "ami-1e749f67"


def test_anothers_snapshot_is_used_by_its_name_alone(
    clients: Clients, account: Account, subnet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = iam.owner_of(account)
    made = owner.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=subnet)
    instance = made["Instances"][0]["InstanceId"]
    account.on_image = lambda image, instance: None
    name = "jupyter-sky-of-bob"
    tags = {"jupyter-sky": name, "jupyter-sky-content": "same", "jupyter-sky-by": "bob@there"}
    others = {**tags, "jupyter-sky-owner": "bob", "jupyter-sky-user": "arn:aws:iam::1:user/bob"}
    pairs = [{"Key": key, "Value": value} for key, value in others.items()]
    kinds = [{"ResourceType": kind, "Tags": pairs} for kind in ("image", "snapshot")]
    image = owner.create_image(InstanceId=instance, Name=name, TagSpecifications=kinds)["ImageId"]
    try:
        assert snapshots.bootable(clients, "same") is None
        assert cloud_resources.upkeep() == []
        with pytest.raises(UsageError, match="is a snapshot of bob@there, who can remove it"):
            snapshots.remove(clients, name)
        asked: list[str] = []
        for given in (name, image):
            question = lambda text, otherwise: asked.append(text)  # noqa: E731
            assert snapshots.resolve(clients, given, question) == image
        assert [text.partition("?")[0] for text in asked] == [
            "Boot from jupyter-sky-of-bob, a snapshot that bob@there has made"
        ] * 2
        with pytest.raises(UsageError, match="nobody to ask: name another --image-id"):
            snapshots.resolve(clients, name, ask)
        # The disk alone is left: it is still not ours.
        owner.deregister_image(ImageId=image)
        assert cloud_resources.upkeep() == []
        assert [each.is_ours for each in snapshots.every(clients)] == [False]
    finally:
        for each in snapshots.every(clients):
            for disk in each.disks:
                owner.delete_snapshot(SnapshotId=disk)
        owner.terminate_instances(InstanceIds=[instance])


def test_a_snapshot_whose_answer_was_lost_is_there(
    clients: Clients, account: Account, subnet: str
) -> None:
    """What is asked for once more is refused then, and would cost without anybody knowing."""
    made = clients.ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=subnet)
    instance = made["Instances"][0]["InstanceId"]
    account.on_image = lambda image, instance: None
    asked: list[Call] = []

    def lose(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action != "CreateImage":
            return carry_out()
        asked.append(call)
        if len(asked) > 1:
            return refusal("InvalidAMIName.Duplicate", "AMI name is already in use")
        carry_out()
        raise CutConnection

    account.fault = lose
    try:
        found = snapshots.make(clients, instance, "same-x86_64", "root", lambda text: None)
        assert len(asked) == 2
        assert [each.name for each in snapshots.every(clients)] == [found.name]
        snapshots.remove(clients, found.name)

        def make_meanwhile(call: Call, carry_out: Callable[[], Answer]) -> Answer:
            answer = carry_out()
            if call.action == "DescribeImages":
                account.fault = None
                snapshots.make(clients, instance, "same-x86_64", "root", lambda text: None)
            return answer

        # One that is begun while `%sky gc` looks is none that is left of another.
        local_store.add_location("us-east-1")
        account.fault = make_meanwhile
        assert not any("removed" in text for text in cloud_resources.upkeep())
        [found] = snapshots.every(clients)
        assert found.image
        snapshots.remove(clients, found.name)
    finally:
        clients.ec2.terminate_instances(InstanceIds=[instance])


def test_a_snapshot_that_the_user_gives_up_is_removed(
    clients: Clients, account: Account, subnet: str
) -> None:
    made = clients.ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=subnet)
    instance = made["Instances"][0]["InstanceId"]
    account.on_image = lambda image, instance: None

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            snapshots.make(clients, instance, "same-x86_64", "root", interrupt)
        assert "CreateImage" in account.actions
        assert snapshots.every(clients) == []

        account.fault = failing("DeregisterImage")
        with pytest.raises(SkyError, match="may be left: `%sky snapshot --remove jupyter-sky-same"):
            snapshots.make(clients, instance, "same-x86_64", "root", interrupt)
        assert snapshots.every(clients)
    finally:
        account.fault = None
        clients.ec2.terminate_instances(InstanceIds=[instance])


def test_a_snapshot_that_nobody_waits_for_is_named(
    clients: Clients, account: Account, subnet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS goes on making it, whether or not it can still be asked."""
    made = clients.ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=subnet)
    instance = made["Instances"][0]["InstanceId"]
    account.on_image = lambda image, instance: None

    def take_long(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeImages":
            answer.body = answer.body.replace(b">available<", b">pending<")
        return answer

    def make(installed: str) -> None:
        snapshots.make(clients, instance, installed, "root", lambda text: None)

    try:
        account.fault = failing("DescribeSnapshots")
        with pytest.raises(SkyError, match=f"it does not work. What AWS has .*{left('one')}"):
            make("one-x86_64")
        account.fault = take_long
        monkeypatch.setattr(snapshots, "MADE_WITHIN", 0.0)
        monkeypatch.setattr(snapshots, "_PAUSE", 0.01)
        with pytest.raises(SkyError, match=f"has not made the .* within 0 s. .*{left('two')}"):
            make("two-x86_64")
        with pytest.raises(UsageError, match="is being made already, jupyter-sky-two-x86_-"):
            make("two-x86_64")
        assert account.actions.count("CreateImage") == 2
        # What AWS refuses to make costs nothing.
        account.fault = failing("CreateImage")
        with pytest.raises(SkyError, match="it does not work.$"):
            make("three-x86_64")
    finally:
        account.fault = None
        clients.ec2.terminate_instances(InstanceIds=[instance])


def left(installed: str) -> str:
    """Return what is said of a snapshot that is left."""
    return f"or goes on making, costs: `%sky snapshot --remove jupyter-sky-{installed}-.*` removes"


def test_what_it_costs_is_said_until_it_is_removed(
    start: Start, clients: Clients, account: Account
) -> None:
    made = make(clients, start(1, framework=False))
    assert f"{made}".endswith(" GB for at most about $0.75 a month")
    assert cloud_resources.upkeep() == [
        f"kept: the snapshot {made} in us-east-1; `%sky snapshot --remove {made.name}` removes it"
    ]
    assert CheckResult("snapshots", f"{made}") in [*AWS(region="us-east-1").diagnose()]

    account.fault = failing("DeleteSnapshot")
    with pytest.raises(Exception, match="it does not work"):
        snapshots.remove(clients, made.name)
    account.fault = None
    # The image is gone, its disk is not.
    assert cloud_resources.upkeep() == [f"removed what was left of the snapshot {made.name}"]
    assert cloud_resources.upkeep() == []
    assert snapshots.every(clients) == []
    with pytest.raises(UsageError, match="there is no snapshot x in us-east-1: there are none"):
        snapshots.remove(clients, "x")
