"""What has ended is known as that, what is left is found, and what is alive elsewhere goes on."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import cloud_resources, registry, row_updates, turns
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.cluster.inventory.storage.row import Broken
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.commands.life.gc import remove_orphans
from jupyter_sky.providers import providers
from jupyter_sky.providers.aws import AWS, inventory, local_store, rented
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.tags import SINCE, cluster_tags, tag_specification
from jupyter_sky.providers.aws.teardown import release
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.stand_in.faults import denying, failing
from tests.providers.aws.stand_in.machines import Machines
from tests.providers.aws.starting import start as rent

Left = Callable[[], list[str]]


def running(clients: Clients) -> int:
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=alive)["Reservations"]
    return sum(len(each["Instances"]) for each in found)


def test_a_cluster_whose_machine_has_ended_itself(
    start: Start, machines: Machines, clients: Clients, left: Left
) -> None:
    cells = start(1, framework=False)
    cells.cluster.close()
    [instance] = machines.hosts
    clients.ec2.terminate_instances(InstanceIds=[instance])
    row = registry.find(cells.cluster.name)
    assert row is not None
    assert row.meter.since > row.created, "nobody pays while machines are chosen"
    [result] = probe([row], providers())
    assert result.phase is ProbePhase.GONE
    row = registry.find(cells.cluster.name)
    assert row is not None
    cost = row.cost(time.time())
    assert cost == row.cost(time.time() + 3600), "it costs nothing any more"
    [rental], _ = cloud_resources.find()
    assert str(rental).startswith(f"{cells.cluster.name}: 1 security group, 1 key pair in us-e")
    assert rental.is_orphaned
    rental.remove()
    assert left() == []
    assert registry.find(cells.cluster.name) is None


def test_gc_ends_no_machine_that_may_have_files_that_are_nowhere_else(
    start: Start,
    machines: Machines,
    clients: Clients,
    left: Left,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = start(2, framework=False)
    name = cells.cluster.name
    row_updates.record_line(cells.cluster.id, "--volume s3://photos/data:~/data")
    cells.cluster.close()
    first, second = machines.hosts
    clients.ec2.terminate_instances(InstanceIds=[second])
    machines.hosts[first].cut()
    remove_orphans(None, lambda options: AWS())
    said = capsys.readouterr().out
    assert f"{name} stays as it was: what ranks of " in said
    assert f"`%sky down --discard {name}` ends the cluster without them" in said
    assert running(clients) == 1
    # Once its agent has said that nothing is left, it costs no more.
    machines.hosts[first].mend()
    remove_orphans(None, lambda options: AWS())
    assert f"removed {name}: 1 instance" in capsys.readouterr().out
    assert left() == []


def test_an_answer_that_is_lost_while_it_grows(
    start: Start, clients: Clients, account: Account
) -> None:
    cells = start(1, framework=False)

    def lose(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action != "RunInstances":
            return carry_out()
        carry_out()
        return refusal("InternalError", "the answer is lost", "400 Bad Request")

    account.fault = lose
    with pytest.raises(SkyError, match="the answer is lost"):
        cells.cluster.scale(2)
    account.fault = None
    assert running(clients) == 1, "found by its tag at once"
    # As a kernel leaves it that is killed then: the row knows nothing of the instance.
    row = registry.find(cells.cluster.name)
    assert row is not None
    tags = clients.ec2.describe_instances(InstanceIds=[row.machines[0]["id"]])
    [first] = tags["Reservations"][0]["Instances"]
    account.on_run = lambda instance, address, params: None
    specification = [{"ResourceType": "instance", "Tags": first["Tags"]}]
    made = clients.ec2.run_instances(
        ImageId=first["ImageId"],
        MinCount=1,
        MaxCount=1,
        SubnetId=first["SubnetId"],
        TagSpecifications=specification,
    )
    assert turns.begin(cells.cluster.id)
    assert not [each for each in cloud_resources.find()[0] if each.is_orphaned]
    turns.end(cells.cluster.id)
    # One that left, and shuts down for minutes, costs nothing.
    account.fault = shutting_down(made["Instances"][0]["InstanceId"])
    assert not [each for each in cloud_resources.find()[0] if each.is_orphaned]
    account.fault = None
    [rental] = [each for each in cloud_resources.find()[0] if each.is_orphaned]
    assert "1 instance of which it does not know in us-east-1" in str(rental)
    rental.remove()
    assert running(clients) == 1
    assert cells.ask("1 + 1") == [2]


def shutting_down(instance: str) -> Callable[[Call, Callable[[], Answer]], Answer]:
    """Return a fault by which an instance shuts down, which it does at once in tests."""
    before = rf"<instanceId>{instance}</instanceId>.*?<instanceState>.*?<name>".encode()

    def delay(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeInstances":
            pattern = rb"(" + before + rb")running"
            answer.body = re.sub(pattern, rb"\1shutting-down", answer.body, flags=re.DOTALL)
        return answer

    return delay


def unseen(account: Account, looks: int) -> None:
    """Have the answer to ``RunInstances`` lost, and what it made not found for so many looks."""
    asked: list[str] = []

    def hide(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            carry_out()
            asked.append(call.action)
            return refusal("InternalError", "the answer is lost", "400 Bad Request")
        if asked and call.action == "DescribeInstances":
            asked.append(call.action)
        if asked and call.action in ("DescribeInstances", "DescribeVolumes"):
            by_tag = any(value.startswith("tag:") for value in call.params.values())
            if by_tag and len(asked) <= looks:
                nothing = "<reservationSet/><volumeSet/>"
                return Answer(f"<{call.action}Response>{nothing}</{call.action}Response>".encode())
        return carry_out()

    account.fault = hide


def test_what_aws_does_not_find_yet_is_waited_for_where_its_answer_is_lost(
    account: Account, subnet: str, clients: Clients, left: Left
) -> None:
    """It is not found by its tags at once, and nobody knows its ids."""
    unseen(account, 5)
    with pytest.raises(SkyError, match="the answer is lost"):
        rent(subnet)
    account.fault = None
    assert running(clients) == 0
    assert left() == []


def test_a_node_that_aws_does_not_find_yet_is_waited_for(
    start: Start, account: Account, clients: Clients
) -> None:
    cells = start(1, framework=False)
    unseen(account, 4)
    with pytest.raises(SkyError, match="the answer is lost"):
        cells.cluster.scale(2)
    account.fault = None
    assert running(clients) == 1
    assert not rented.is_expecting(cells.cluster.id)
    assert cells.ask("1 + 1") == [2]


def test_what_a_killed_kernel_has_asked_for_is_waited_for_as_long_as_aws_may_not_find_it(
    account: Account, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rented, "KNOWN_WITHIN", 3.0)
    rented.note_request("0123abcd", "a-token")
    # Nor does it come sooner where some of its instances are ended.
    release.terminate(clients, "0123abcd", ["i-0123456789abcdef0"])
    begun = time.monotonic()
    release.release(clients, "0123abcd", lambda text: None)
    assert time.monotonic() - begun > 2
    assert not rented.is_expecting("0123abcd")


@pytest.fixture
def alive(account: Account, subnet: str, left: Left, tmp_path: Path) -> Path:
    """A cluster that boots, as far as anybody can see; returns the registry that it is in."""

    account.fault = failing("TerminateInstances")
    with pytest.raises(SkyError):
        start_in(tmp_path / "first", subnet)
    account.fault = None
    return tmp_path / "first"


def start_in(place: Path, subnet: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", str(place))
        rent(subnet)


def test_gc_from_elsewhere_ends_nothing_that_runs(
    alive: Path,
    subnet: str,
    clients: Clients,
    left: Left,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A copy of the registry, as it was when the cluster was not up yet; and hours later.
    shutil.copytree(alive, tmp_path / "copy")
    database = sqlite3.connect(tmp_path / "copy" / "registry.sqlite")
    with database:
        spec = json.dumps({"computer": "elsewhere", "pid": 1})
        database.execute(
            "UPDATE clusters SET created = ?, spec = json_set(spec, '$.starter', json(?))",
            (time.time() - 86400, spec),
        )
    database.close()
    # Everybody in the account may change tags.
    rented = clients.ec2.describe_instances()["Reservations"][-1]["Instances"]
    clients.ec2.create_tags(
        Resources=[each["InstanceId"] for each in rented],
        Tags=[{"Key": SINCE, "Value": "yesterday"}],
    )
    for place in ("copy", "fresh"):
        monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / place))
        found, trouble = cloud_resources.find(everywhere=True)
        assert not trouble
        [rental] = found
        assert not rental.is_orphaned, place
        assert "4 instances" in rental.resources.what
        assert rental.resources.started_by
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "copy"))
    # Nor does a new cluster of the same name.
    with pytest.raises(SkyError, match="was started by .* in another registry, and runs"):
        rent(subnet)
    row = registry.find("train")
    assert row is not None
    assert running(clients) == 4
    # Whoever says so ends it.
    rental.remove()
    assert left() == []


def test_gc_ends_nothing_whose_row_another_version_has_written(
    alive: Path,
    account: Account,
    clients: Clients,
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(alive))
    with registry.opened() as database:
        database.execute("UPDATE clusters SET machines = '[{\"places\": 4}]'")
    remove_orphans(None, lambda options: AWS())
    assert running(clients) == 4
    said = "whose entry in the registry cannot be read: another version of jupyter_sky may use it"
    assert said in capsys.readouterr().out
    [broken] = registry.read()
    assert isinstance(broken, Broken)
    # While AWS does not say what runs, it stays.
    account.fault = lambda call, carry_out: refusal("RequestExpired", "Request has expired.")
    with pytest.raises(SkyError, match="^train cannot be ended now, .* it may have machines that"):
        cloud_resources.end_unreadable(broken)
    account.fault = None
    assert registry.read() == [broken]
    # Whoever says so ends it.
    said = cloud_resources.end_unreadable(broken)
    assert said.startswith("train: removed from the registry, where its entry could not be read, ")
    assert "with 4 instances" in said
    assert left() == []
    assert registry.read() == []


def test_gc_from_elsewhere_removes_what_nobody_can_use(
    alive: Path, clients: Clients, left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alive.is_dir()
    ours = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=ours)["Reservations"]
    clients.ec2.terminate_instances(
        InstanceIds=[each["InstanceId"] for some in found for each in some["Instances"]]
    )
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "fresh"))
    [rental], _ = cloud_resources.find(everywhere=True)
    assert not rental.is_orphaned, "its instances may be about to come"
    monkeypatch.setattr(inventory, "ABANDONED_AFTER", -60.0)
    [rental], _ = cloud_resources.find(everywhere=True)
    assert rental.is_orphaned
    rental.remove()
    assert left() == []


def test_gc_finds_what_is_in_a_region_that_was_never_used_from_here(
    account: Account, clients: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    local_store.add_location("us-east-1")
    there = clients.at("eu-west-1")
    tags = cluster_tags("0123abcd", "forgotten", there.user)
    kinds = tag_specification("security-group", {**tags, "jupyter-sky-owner": "elsewhere"})
    vpc = there.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    there.ec2.create_security_group(
        GroupName="jupyter-sky-0123abcd", Description="x", VpcId=vpc, TagSpecifications=kinds
    )
    assert cloud_resources.find()[0] == []

    def empty_first(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        """Give a page with nothing on it first, as AWS may where it filters."""
        if call.action != "DescribeTags" or "NextToken" in call.params:
            return carry_out()
        body = "<tagSet/><nextToken>more</nextToken>"
        return Answer(f"<DescribeTagsResponse>{body}</DescribeTagsResponse>".encode())

    account.fault = empty_first
    [rental] = cloud_resources.find(everywhere=True)[0]
    assert str(rental) == "forgotten: 1 security group in eu-west-1"
    rental.remove()
    assert cloud_resources.find(everywhere=True)[0] == []


def test_gc_looks_at_the_account_where_no_region_is_set(
    account: Account, clients: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    """The user types a region in each cell, and the registry is gone."""
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    tags = cluster_tags("0123abcd", "forgotten", clients.user)
    made = clients.ec2.create_security_group(
        GroupName="jupyter-sky-0123abcd",
        Description="x",
        VpcId=clients.ec2.describe_vpcs()["Vpcs"][0]["VpcId"],
        TagSpecifications=tag_specification("security-group", tags),
    )
    remove_orphans(None, lambda options: AWS())
    assert "forgotten: 1 security group in us-east-1, started by" in capsys.readouterr().out
    clients.ec2.delete_security_group(GroupId=made["GroupId"])
    # Nobody can look with a profile that there is not.
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("AWS_PROFILE", "work")
        elsewhere.delenv("AWS_ACCESS_KEY_ID")
        remove_orphans(None, lambda options: AWS())
    said = capsys.readouterr().out
    assert "what is rented at AWS cannot be listed: The config profile (work) could not" in said
    assert "nothing was left behind" not in said


def test_gc_says_which_regions_it_may_not_look_at(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    """What is there may cost something; in one that is closed to all, nothing can have begun."""
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path))
    local_store.add_location("us-east-1")
    account.fault = denying("DescribeTags")
    remove_orphans(None, lambda options: AWS())
    said = capsys.readouterr().out
    assert "eu-west-1 cannot be looked at: your AWS user may not do ec2:DescribeTags: ask" in said
    assert "nothing was left behind" not in said
    text = "You are not authorized to perform: ec2:DescribeTags with an explicit deny in a policy"
    for code in ("UnauthorizedOperation", "OptInRequired"):

        def refuse(call: Call, carry_out: Callable[[], Answer], code: str = code) -> Answer:
            return refusal(code, text) if call.action == "DescribeTags" else carry_out()

        account.fault = refuse
        remove_orphans(None, lambda options: AWS())
        while (out := capsys.readouterr().out).startswith("removed "):  # by another test, just now
            remove_orphans(None, lambda options: AWS())
        assert out.splitlines()[0] == "nothing was left behind"


def test_who_never_used_aws_asks_for_nothing(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as without:
        without.setenv("JUPYTER_SKY_HOME", str(tmp_path))
        without.delenv("AWS_ACCESS_KEY_ID")
        assert inventory.list_resources(everywhere=True) == ([], [])
    assert account.calls == []
