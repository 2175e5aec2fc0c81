"""What accounts of companies demand: networks, groups, keys and tags of their own, reservations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.iam_policy import policy
from jupyter_sky.providers.aws.network.security_group import check_group
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in import iam
from tests.providers.aws.stand_in.account import IMAGE, Account, Answer, Call, refusal
from tests.providers.aws.starting import SPEC, Booting, provider, start

Left = Callable[[], list[str]]

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def asked_for(account: Account, subnet: str, **options: Any) -> dict[str, str]:
    """Start a cluster and give it back; return what ``RunInstances`` was asked for."""
    account.calls.clear()
    with pytest.raises(Booting):
        start(subnet, **options)
    [call] = [call for call in account.calls if call.action == "RunInstances"]
    return call.params


def tags_in(params: dict[str, str], kind: str) -> dict[str, str]:
    """Return the tags that a request has for what it makes of a kind."""
    [of_kind] = [
        key.removesuffix(".ResourceType")
        for key, value in params.items()
        if key.endswith(".ResourceType") and value == kind
    ]
    return {
        value: params[key.removesuffix("Key") + "Value"]
        for key, value in params.items()
        if key.startswith(f"{of_kind}.Tag.") and key.endswith(".Key")
    }


def test_tags_of_the_company_are_on_all_that_is_made(
    account: Account, subnet: str, left: Left
) -> None:
    params = asked_for(account, subnet, tags={"team": "vision", "cost-center": "12 3"})
    for call in account.calls:
        if call.action.startswith(("Import", "Create", "Run")):
            kinds = [v for k, v in call.params.items() if k.endswith(".ResourceType")]
            assert kinds
            for kind in kinds:
                found = tags_in(call.params, kind)
                assert (found["team"], found["cost-center"]) == ("vision", "12 3"), call.action
    assert "jupyter-sky" in tags_in(params, "instance")
    assert left() == []


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({"jupyter-sky-owner": "me"}, "the tag 'jupyter-sky-owner' cannot be yours"),
        ({"aws:x": "me"}, "the tag 'aws:x' cannot be yours"),
        ({"team": 3}, "the tag 'team': 3 is no text: put both in quotes"),
        ({"team": "x" * 257}, "the tag 'team' is too long"),
        ("team=vision", "type names and values, like tags={'team': 'vision'}"),
    ],
)
def test_tags_that_cannot_be(tags: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        AWS(tags=tags)
    assert sentence in str(caught.value)


def test_disks_are_encrypted_with_a_key_of_the_company(account: Account, subnet: str) -> None:
    params = asked_for(account, subnet, kms_key=KEY)
    assert params["BlockDeviceMapping.1.Ebs.KmsKeyId"] == KEY
    assert params["BlockDeviceMapping.1.Ebs.Encrypted"] == "true"
    use = iam.Request("kms:CreateGrant", KEY, {"kms:ViaService": "ec2.us-east-1.amazonaws.com"})
    assert not iam.allows(policy(), use)
    assert iam.allows(policy(kms_key=KEY), use)
    other = iam.Request("kms:CreateGrant", KEY.replace("1234abcd", "9"), use.context)
    assert not iam.allows(policy(kms_key=KEY), other)
    directly = iam.Request("kms:Decrypt", KEY, {})
    assert not iam.allows(policy(kms_key=KEY), directly), "only EC2 uses it, for the user"
    assert iam.allows(AWS(kms_key=KEY).policy(), use)


def test_no_disk_of_an_image_outlives_its_instance(
    account: Account, subnet: str, clients: Clients, left: Left
) -> None:
    """An instance that ends itself leaves nobody who could look for its disks."""

    def with_data(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        """Have an image of the user's bring data, on a disk that stays, and a local one."""
        answer = carry_out()
        if call.action == "DescribeImages":
            data = (
                b"<item><deviceName>/dev/sdf</deviceName><ebs><snapshotId>snap-0a</snapshotId>"
                b"<volumeSize>500</volumeSize><deleteOnTermination>false</deleteOnTermination>"
                b"<volumeType>gp2</volumeType><encrypted>false</encrypted></ebs></item>"
                b"<item><deviceName>/dev/sdb</deviceName><virtualName>ephemeral0</virtualName>"
                b"</item></blockDeviceMapping>"
            )
            answer.body = answer.body.replace(b"</blockDeviceMapping>", data)
        return answer

    account.fault = with_data
    said = provider(subnet, image_id=IMAGE).plan(SPEC)
    assert "8 disks of 100 and 500 GB for $0.26 an hour" in said
    assert "8 disks of 100 and 500 GB, encrypted with AWS's key" in said
    params = asked_for(account, subnet, image_id=IMAGE, kms_key=KEY)
    disks = [value for name, value in params.items() if name.endswith(".DeviceName")]
    assert disks == ["/dev/sda1", "/dev/sdf"]
    for number, size in ((1, "100"), (2, "500")):
        disk = f"BlockDeviceMapping.{number}.Ebs"
        assert params[f"{disk}.VolumeSize"] == size
        assert params[f"{disk}.DeleteOnTermination"] == "true"
        assert params[f"{disk}.Encrypted"] == "true"
        assert params[f"{disk}.KmsKeyId"] == KEY
    assert left() == []


def test_nodes_are_not_placed_where_that_is_not_wanted(account: Account, subnet: str) -> None:
    params = asked_for(account, subnet, placement=False)
    assert "Placement.GroupName" not in params
    assert "CreatePlacementGroup" not in account.actions
    assert "Placement.GroupName" in asked_for(account, subnet)


@pytest.fixture
def second_subnet(clients: Clients, subnet: str) -> Iterator[str]:
    vpc = clients.ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    made = clients.ec2.create_subnet(
        VpcId=vpc, CidrBlock="127.77.7.0/24", AvailabilityZone="us-east-1b"
    )["Subnet"]["SubnetId"]
    yield made
    clients.ec2.delete_subnet(SubnetId=made)


def test_subnets_are_tried_in_their_order(
    account: Account, subnet: str, second_subnet: str, left: Left
) -> None:
    def none_there(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            return refusal("InsufficientInstanceCapacity", "There is not enough")
        return carry_out()

    for order in ([second_subnet, subnet], [subnet, second_subnet]):
        account.fault = none_there
        account.calls.clear()
        with pytest.raises(SkyError, match="AWS has no capacity for 4"):
            start(order if order[0] == subnet else ", ".join(order))
        tried = [
            call.params["NetworkInterface.1.SubnetId"]
            for call in account.calls
            if call.action == "RunInstances"
        ]
        assert list(dict.fromkeys(tried)) == order
    assert left() == []


def test_subnets_of_two_networks(account: Account, subnet: str, clients: Clients) -> None:
    [first, *_] = clients.ec2.describe_subnets(
        Filters=[{"Name": "default-for-az", "Values": ["true"]}]
    )["Subnets"]
    with pytest.raises(UsageError, match="are in 2 networks, and a cluster is in one"):
        start([subnet, first["SubnetId"]])


@pytest.fixture
def group(clients: Clients, subnet: str) -> Iterator[str]:
    """A security group of the company's, which lets in nobody yet."""
    vpc = clients.ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    made = clients.ec2.create_security_group(GroupName="ours", Description="x", VpcId=vpc)
    yield made["GroupId"]
    clients.ec2.delete_security_group(GroupId=made["GroupId"])


def allow(clients: Clients, group: str, **rule: Any) -> None:
    clients.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])


def test_a_security_group_of_the_company_is_used_and_not_changed(
    account: Account, subnet: str, clients: Clients, group: str, left: Left
) -> None:
    with pytest.raises(UsageError, match=rf"{group} does not let in 127\.\S+ at port 22: add that"):
        start(subnet, security_group=group)
    allow(
        clients,
        group,
        IpProtocol="tcp",
        FromPort=0,
        ToPort=1024,
        IpRanges=[{"CidrIp": "127.0.0.0/8"}],
    )
    with pytest.raises(UsageError, match="does not let its own members reach each other"):
        start(subnet, security_group=group)
    allow(clients, group, IpProtocol="-1", UserIdGroupPairs=[{"GroupId": group}])
    params = asked_for(account, subnet, security_group=group)
    assert params["NetworkInterface.1.SecurityGroupId.1"] == group
    changes = [each for each in account.actions if "SecurityGroup" in each]
    assert {each for each in changes if not each.startswith("Describe")} == set()
    assert left() == []
    [said] = clients.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert len(said["IpPermissions"]) == 2
    with pytest.raises(UsageError, match="there is no security group sg-nowhere in us-east-1"):
        start(subnet, security_group="sg-nowhere")
    with pytest.raises(UsageError, match=r"is in vpc-\w+, and the subnet in vpc-other"):
        check_group(clients, group, "vpc-other", "127.0.0.1/32")
    assert "no security group: " in provider(subnet, security_group=group).plan(SPEC)


def test_behind_a_bastion_it_is_the_bastion_that_is_let_in(
    account: Account, subnet: str, clients: Clients, group: str, left: Left
) -> None:
    with pytest.raises(UsageError, match=r"bastion='gate' is who logs in: set ssh_from, .*, or a"):
        provider(subnet, bastion="gate")
    account.calls.clear()
    with pytest.raises(Booting):
        start(subnet, bastion="gate", ssh_from="10.1.0.7")
    let_in = [
        call.params["IpPermissions.1.IpRanges.1.CidrIp"]
        for call in account.calls
        if call.params.get("IpPermissions.1.FromPort") == "22"
    ]
    assert let_in == ["10.1.0.7/32"]
    # A group of the company's own lets in its bastion, and not this computer.
    login = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    allow(clients, group, **login, IpRanges=[{"CidrIp": "10.1.0.7/32"}])
    allow(clients, group, IpProtocol="-1", UserIdGroupPairs=[{"GroupId": group}])
    params = asked_for(account, subnet, bastion="gate", security_group=group)
    assert params["NetworkInterface.1.SecurityGroupId.1"] == group
    plan = provider(subnet, bastion="gate", security_group=group).plan(SPEC)
    assert f"no security group: {group} is there" in plan
    with pytest.raises(UsageError, match=r"does not let in 10\.2\.0\.0/16 at port 22"):
        start(subnet, bastion="gate", security_group=group, ssh_from="10.2.0.0/16")
    assert left() == []


RESERVED = {
    "instanceType": "p4d.24xlarge",
    "availabilityZone": "us-east-1a",
    "availableInstanceCount": "4",
    "state": "active",
    "reservationType": "default",
}


def test_what_is_reserved_is_taken(account: Account, subnet: str, left: Left) -> None:
    account.reservations = {"cr-0f1e": RESERVED}
    params = asked_for(account, subnet, capacity_reservation="cr-0f1e")
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert params[target] == "cr-0f1e"
    assert "InstanceMarketOptions.MarketType" not in params
    plan = provider(subnet, capacity_reservation="cr-0f1e").plan(SPEC)
    assert "4 × p4d.24xlarge of cr-0f1e for $83.24 an hour" in plan
    account.reservations = {"cr-0f1e": {**RESERVED, "availableInstanceCount": "3"}}
    with pytest.raises(UsageError, match="cr-0f1e has 3 instances free, and 4 are wanted"):
        start(subnet, capacity_reservation="cr-0f1e")
    with pytest.raises(UsageError, match="there is no capacity reservation cr-00 in us-east-1"):
        start(subnet, capacity_reservation="cr-00")
    with pytest.raises(UsageError, match="cr-0f1e is for us-east-1a, and not us-east-1b"):
        account.reservations = {"cr-0f1e": RESERVED}
        start(subnet, capacity_reservation="cr-0f1e", zone="us-east-1b")
    assert left() == []


def test_a_capacity_block_is_paid_already(account: Account, subnet: str, left: Left) -> None:
    block = {**RESERVED, "reservationType": "capacity-block"}
    account.reservations = {"cr-0b": block}
    started: list[dict[str, str]] = []

    def keep(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            started.append(call.params)
        return carry_out()

    account.fault = keep
    with pytest.raises(Booting):
        start(subnet, capacity_reservation="cr-0b")
    assert started[0]["InstanceMarketOptions.MarketType"] == "capacity-block"
    # AWS places what is in a block, and refuses a placement group of ours.
    assert "Placement.GroupName" not in started[0]
    assert "CreatePlacementGroup" not in account.actions
    plan = provider(subnet, capacity_reservation="cr-0b").plan(SPEC)
    assert "placement group" not in plan
    assert "for $0.0438 an hour beside the Capacity Block" in plan
    account.reservations = {
        "cr-0b": {**block, "state": "scheduled", "startDate": "2026-12-01T11:30:00.000Z"}
    }
    with pytest.raises(UsageError, match="is scheduled, and begins 2026-12-01 11:30 UTC: name one"):
        start(subnet, capacity_reservation="cr-0b")
    with pytest.raises(UsageError, match="what is reserved is not spot"):
        AWS(capacity_reservation="cr-0b", spot=True)
    with pytest.raises(UsageError, match="type its id, which begins with cr-"):
        AWS(capacity_reservation="mine")
    assert left() == []


def test_nodes_join_in_a_capacity_block(start: Start, account: Account, clients: Clients) -> None:
    block = {**RESERVED, "instanceType": "c5n.18xlarge", "reservationType": "capacity-block"}
    account.reservations = {"cr-0b": block}

    def describe(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        """Say what moto has otherwise."""
        answer = carry_out()
        if call.action == "DescribeInstances":
            for name, value in (("instanceLifecycle", "capacity-block"), ("interfaceType", "efa")):
                said = f"<{name}>{value}</{name}>".encode()
                answer.body = re.sub(rf"<{name}>.*?</{name}>".encode(), said, answer.body)
        return answer

    account.fault = describe
    options = {"placement": False, "capacity_reservation": "cr-0b"}
    cells = start(2, framework=False, **options)
    provider = AWS(user="root", python=cells.cluster.provider.python, **options)
    # What it has of the block is not free any more, and one is to join.
    account.reservations = {"cr-0b": {**block, "availableInstanceCount": "1"}}
    with pytest.raises(UsageError, match="cr-0b has 1 instance free, and 2 are wanted"):
        cells.cluster.scale(4, provider)
    cells.cluster.scale(3, provider)
    first, second = [call.params for call in account.calls if call.action == "RunInstances"]
    for params in (first, second):
        assert params["InstanceMarketOptions.MarketType"] == "capacity-block"
        assert params["NetworkInterface.1.InterfaceType"] == "efa"
        assert "Placement.GroupName" not in params
    assert cells.cluster.price == pytest.approx(3 * 100 * 0.08 / 730), "more than its disks is paid"


def test_nodes_that_join_are_like_the_first_for_another_kernel_too(
    start: Start, account: Account, clients: Clients
) -> None:
    cells = start(1, framework=False, tags={"team": "vision"}, kms_key=KEY)
    # As `%sky scale` has it where nothing of that is set.
    cells.cluster.scale(2, AWS(user="root", python=cells.cluster.provider.python))
    first, second = [call.params for call in account.calls if call.action == "RunInstances"]
    for params in (first, second):
        assert tags_in(params, "volume")["team"] == "vision"
        assert params["BlockDeviceMapping.1.Ebs.KmsKeyId"] == KEY
    assert cells.ask("1 + 1") == [2, 2]
