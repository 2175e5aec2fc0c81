"""The policy that `%sky doctor` prints: it allows what is needed, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import botocore.exceptions
import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.stopping.start import start_stopped
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.iam_policy import policy
from jupyter_sky.providers.aws.network import access, security_group
from jupyter_sky.providers.aws.tags import tag_specification
from tests.paths import ROOT
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in import iam
from tests.providers.aws.stand_in.account import IMAGE, Account
from tests.providers.aws.starting import Booting, start

Left = Callable[[], list[str]]


@pytest.fixture(name="cluster_start")
def _cluster_start(start: Start) -> Start:
    """Starts clusters whose machines boot; `start` here gets as far as that."""
    return start


@pytest.fixture
def others(account: Account, subnet: str) -> Iterator[dict[str, str]]:
    """What another user has in the account, by kind; from now on the policy is enforced."""
    owner = iam.owner_of(account)
    vpc = owner.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    made = owner.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=subnet)
    group = owner.create_security_group(GroupName="theirs", Description="x", VpcId=vpc)
    volume = owner.create_volume(AvailabilityZone="us-east-1a", Size=1)
    found = {
        "instance": made["Instances"][0]["InstanceId"],
        "group": group["GroupId"],
        "volume": volume["VolumeId"],
    }
    owner.create_key_pair(KeyName="theirs")
    iam.enforce(account, policy())
    yield found
    account.fault = None
    owner.terminate_instances(InstanceIds=[found["instance"]])
    owner.delete_key_pair(KeyName="theirs")
    owner.delete_security_group(GroupId=found["group"])
    owner.delete_volume(VolumeId=found["volume"])


@pytest.mark.usefixtures("others")
def test_it_allows_the_whole_life_of_a_cluster(subnet: str, left: Left) -> None:
    for options in ({}, {"spot": True}):
        with pytest.raises(Booting):
            start(subnet, **options)
    assert left() == []


def test_it_allows_a_cluster_to_grow_and_its_notebook_to_move(
    cluster_start: Start, account: Account, clients: Clients, left: Left
) -> None:
    iam.enforce(account, policy())
    cells = cluster_start(1, framework=False)
    cells.cluster.scale(2)
    [group] = security_group.find_groups(clients, cells.cluster.id)
    security_group.admit(clients, group, "192.0.2.7/32")
    assert "RevokeSecurityGroupIngress" in account.actions
    assert access.let_in(clients, cells.cluster.id, cells.cluster.state.nodes[0].addr) is None
    cells.cluster.scale(1)
    cells.cluster.down()
    assert left() == []


def test_it_allows_a_cluster_to_be_stopped_and_started(
    cluster_start: Start, account: Account, left: Left
) -> None:
    iam.enforce(account, policy())
    cells = cluster_start(1, framework=False)
    cost = cells.cluster.power.check_stop()
    assert cost.price, "what its disk costs is known"
    cells.cluster.power.stop(cost)
    row = registry.find(cells.cluster.name)
    assert row is not None
    provider = AWS(user="root", python=sys.executable)
    again = start_stopped(row, registry.recorded_spec(row), provider, cells.cluster.runtime_env)
    again.down()
    assert {"StopInstances", "StartInstances", "ModifyInstanceAttribute"} <= {*account.actions}
    assert left() == []


def test_it_allows_snapshots_of_what_is_ours(
    account: Account, subnet: str, clients: Clients
) -> None:
    owner = iam.owner_of(account)
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "jupyter-sky", "Value": "0123abcd"}]}]
    made = owner.run_instances(
        ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=subnet, TagSpecifications=tags
    )
    instance = made["Instances"][0]["InstanceId"]
    iam.enforce(account, policy())
    try:
        found = snapshots.make(clients, instance, "key", "root", lambda text: None)
        assert snapshots.remove(clients, found.name).name == found.name
        assert snapshots.every(clients) == []
    finally:
        account.fault = None
        owner.terminate_instances(InstanceIds=[instance])


def test_it_names_everything_that_the_product_asks_for() -> None:
    allowed = {each for one in json.loads(policy())["Statement"] for each in one["Action"]}
    asked = set()
    for path in (ROOT / "jupyter_sky/providers/aws").rglob("*.py"):
        text = path.read_text()
        names = re.findall(r"ec2\.([a-z_]+)[(,)\n]", text)
        names += re.findall(r"""get_paginator\(\s*["']([a-z_]+)["']""", text)
        names += re.findall(r"_(?:allow|attempt)\(\s*\w+(?:\.\w+)*\.ec2\.([a-z_]+)", text)
        asked |= {name for name in names if name != "get_paginator"}
    assert len(asked) > 25
    words = {name: "".join(part.title() for part in name.split("_")) for name in asked}
    lacking = {
        name for name, word in words.items() if not any(each.endswith(word) for each in allowed)
    }
    assert lacking == set()


def test_a_role_is_passed_only_where_a_profile_is_named(
    account: Account, subnet: str, others: dict[str, str], clients: Clients
) -> None:
    def run() -> list[str]:
        made = clients.ec2.run_instances(
            ImageId=IMAGE,
            MinCount=1,
            MaxCount=1,
            IamInstanceProfile={"Name": "trainer"},
            NetworkInterfaces=[{"DeviceIndex": 0, "SubnetId": subnet}],
            TagSpecifications=tag_specification("instance", {"jupyter-sky": "0123abcd"}),
        )
        return [each["InstanceId"] for each in made["Instances"]]

    with pytest.raises(botocore.exceptions.ClientError, match="UnauthorizedOperation"):
        run()
    request = iam.Request(
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/trainer",
        {"iam:PassedToService": "ec2.amazonaws.com"},
    )
    assert not iam.allows(policy(), request)
    assert iam.allows(policy("trainer"), request)
    assert not iam.allows(policy("other"), request)


def test_the_evaluator_follows_the_rules_of_iam() -> None:
    def decide(action: str = "ec2:StopInstances", **context: str) -> bool:
        rules = json.dumps(
            {
                "Statement": [
                    {"Effect": "Allow", "Action": "ec2:st?p*", "Resource": "arn:*:instance/*"},
                    {
                        "Effect": "Allow",
                        "Action": ["ec2:RunInstances"],
                        "Resource": "*",
                        "Condition": {
                            "StringEquals": {"a": ["1", "2"], "b": "x"},
                            "StringLike": {"c": "y*"},
                        },
                    },
                    {
                        "Effect": "Deny",
                        "Action": "*",
                        "Resource": "*",
                        "Condition": {"StringEquals": {"d": "no"}},
                    },
                ]
            }
        )
        where = "arn:aws:ec2:us-east-1:1:instance/i-1"
        return iam.allows(rules, iam.Request(action, where, context))

    assert decide()
    assert not decide(d="no"), "a deny is stronger"
    assert not decide("ec2:StartInstances"), "nothing allows it"
    assert decide("ec2:RunInstances", a="2", b="x", c="yes")
    assert not decide("ec2:RunInstances", a="3", b="x", c="yes")
    assert not decide("ec2:RunInstances", a="2", c="yes"), "a key that is missing"
    assert not decide("ec2:RunInstances", a="2", b="x", c="no")


FORBIDDEN: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "terminate": lambda ec2, at: ec2.terminate_instances(InstanceIds=[at["instance"]]),
    "stop": lambda ec2, at: ec2.stop_instances(InstanceIds=[at["instance"]]),
    "start": lambda ec2, at: ec2.start_instances(InstanceIds=[at["instance"]]),
    "give other user data": lambda ec2, at: ec2.modify_instance_attribute(
        InstanceId=at["instance"], UserData={"Value": b"#!/bin/sh"}
    ),
    "delete a volume": lambda ec2, at: ec2.delete_volume(VolumeId=at["volume"]),
    "delete a key": lambda ec2, at: ec2.delete_key_pair(KeyName="theirs"),
    "open a port": lambda ec2, at: ec2.authorize_security_group_ingress(
        GroupId=at["group"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
    ),
    "make an image of it": lambda ec2, at: ec2.create_image(
        InstanceId=at["instance"], Name="theirs"
    ),
    "make a tagged image of it": lambda ec2, at: ec2.create_image(
        InstanceId=at["instance"],
        Name="theirs",
        TagSpecifications=[
            {"ResourceType": "image", "Tags": [{"Key": "jupyter-sky", "Value": "x"}]}
        ],
    ),
    "close a port": lambda ec2, at: ec2.revoke_security_group_ingress(
        GroupId=at["group"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
    ),
    # Nobody would find it, and who has started it could not end it.
    "start one without our tag": lambda ec2, at: ec2.run_instances(
        ImageId=IMAGE,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=tag_specification("volume", {"jupyter-sky": "mine"}),
    ),
    # With our tag on it, all of the above would be allowed.
    "tag": lambda ec2, at: ec2.create_tags(
        Resources=[at["instance"]], Tags=[{"Key": "jupyter-sky", "Value": "mine"}]
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_it_allows_nothing_with_what_others_have(
    others: dict[str, str], clients: Clients, what: str
) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="UnauthorizedOperation"):
        FORBIDDEN[what](clients.ec2, others)
