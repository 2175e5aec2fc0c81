"""The subnets that instances can go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors


@dataclass(frozen=True)
class Subnet:
    """A part of a network in one zone."""

    id: str
    vpc: str
    zone: str
    cidr: str


def find_subnets(clients: Clients, wanted: Sequence[str]) -> list[Subnet]:
    """Return the subnets that instances can go to: given ones in their order, or the default ones.

    Raises
    ------
    UsageError
        When there are none, or they belong to several networks.
    """
    if wanted:
        try:
            with explain_errors():
                found = clients.ec2.describe_subnets(SubnetIds=list(wanted))["Subnets"]
        except AWSError as error:
            if error.code.startswith("InvalidSubnetID"):
                missing = next((each for each in wanted if each in error.message), wanted[0])
                raise UsageError(
                    f"there is no subnet {missing} in {clients.region}: "
                    "`aws ec2 describe-subnets` in a terminal lists them."
                ) from None
            raise
        found.sort(key=lambda each: wanted.index(each["SubnetId"]))
        if len(networks := {each["VpcId"] for each in found}) > 1:
            raise UsageError(
                f"the subnets {', '.join(wanted)} are in {len(networks)} networks, and a cluster "
                "is in one: name subnets of the same VPC."
            )
    else:
        only_default = [{"Name": "default-for-az", "Values": ["true"]}]
        with explain_errors():
            found = clients.ec2.describe_subnets(Filters=only_default)["Subnets"]
        if not found:
            raise UsageError(
                f"your account has no default network in {clients.region}: name a subnet, as in "
                "`%config Sky.aws = {'subnet': 'subnet-1a2b3c4d'}`, or run "
                "`aws ec2 create-default-vpc` in a terminal."
            )
    return [
        Subnet(each["SubnetId"], each["VpcId"], each["AvailabilityZone"], each["CidrBlock"])
        for each in found
    ]
