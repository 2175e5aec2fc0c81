"""The policy that `%sky doctor` prints: it allows what is needed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import botocore.exceptions
import pytest

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.iam_policy import policy
from tests.providers.aws.stand_in import iam
from tests.providers.aws.stand_in.account import IMAGE, Account
from tests.providers.aws.starting import Booting, start

Left = Callable[[], list[str]]


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


def test_it_allows_snapshots(others: dict[str, str], clients: Clients) -> None:
    made = snapshots.make(clients, others["instance"], "key", "root", lambda text: None)
    assert snapshots.remove(clients, made.name).name == made.name
    assert snapshots.every(clients) == []


FORBIDDEN: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "terminate": lambda ec2, at: ec2.terminate_instances(InstanceIds=[at["instance"]]),
    "stop": lambda ec2, at: ec2.stop_instances(InstanceIds=[at["instance"]]),
    "delete a volume": lambda ec2, at: ec2.delete_volume(VolumeId=at["volume"]),
    "delete a key": lambda ec2, at: ec2.delete_key_pair(KeyName="theirs"),
    "open a port": lambda ec2, at: ec2.authorize_security_group_ingress(
        GroupId=at["group"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
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
