"""The subnets that instances can go to."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import AWSError, Clients, explain_errors


@dataclass(frozen=True)
class Subnet:
    """A part of a network in one zone."""

    id: str
    vpc: str
    zone: str
    cidr: str


def find_subnets(clients: Clients, wanted: str | None) -> dict[str, Subnet]:
    """Return the subnets that instances can go to, by zone: a given one, or the default ones.

    Raises
    ------
    UsageError
        When there are none.
    """
    if wanted is not None:
        try:
            with explain_errors():
                found = clients.ec2.describe_subnets(SubnetIds=[wanted])["Subnets"]
        except AWSError as error:
            if error.code.startswith("InvalidSubnetID"):
                raise UsageError(
                    f"there is no subnet {wanted} in {clients.region}: "
                    "`aws ec2 describe-subnets` in a terminal lists them."
                ) from None
            raise
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
    return {
        each["AvailabilityZone"]: Subnet(
            each["SubnetId"], each["VpcId"], each["AvailabilityZone"], each["CidrBlock"]
        )
        for each in found
    }
