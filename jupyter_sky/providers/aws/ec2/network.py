"""The network of instances: their subnets, and a security group that says who reaches them."""

from __future__ import annotations

import ipaddress
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import AWSError, Clients, explain_errors
from jupyter_sky.providers.aws.ec2.tags import tag_specification

_WHO_AM_I = "https://checkip.amazonaws.com"
_ANSWER_WITHIN = 10.0


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


def caller_cidr(subnet: Subnet, private: bool, given: str | None) -> str:
    """Return the addresses that may log in, as CIDR: this computer's own, and no other.

    Parameters
    ----------
    private
        Whether instances are reached at their private addresses.
    given
        What the user says.
    """
    if given is not None:
        return str(ipaddress.ip_network(given, strict=False))
    address = _towards(subnet.cidr) if private else _seen_from_outside()
    return f"{address}/32"


def _towards(cidr: str) -> str:
    """Return the address of this computer on its route to a network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((str(ipaddress.ip_network(cidr)[1]), 9))
        return str(sock.getsockname()[0])


def _seen_from_outside() -> str:
    try:
        with urllib.request.urlopen(_WHO_AM_I, timeout=_ANSWER_WITHIN) as answer:
            return str(ipaddress.IPv4Address(answer.read(64).decode().strip()))
    except (OSError, ValueError):
        raise UsageError(
            f"your public IP address is not known, as {_WHO_AM_I} does not answer: set it, as in "
            f"`%config Sky.aws = {'ssh_from': '203.0.113.7/32'}`."
        ) from None


def make_security_group(
    clients: Clients, name: str, vpc: str, source: str, tags: Mapping[str, str]
) -> str:
    """Make the security group of a cluster and return its id.

    Its instances reach each other at all ports, ``source`` reaches them over SSH, and nobody else
    does. EFA needs a rule of its own for what leaves, beside the usual one for all that leaves.
    """
    group = _group(clients, name, vpc, tags)
    among = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    login = {**ssh, "IpRanges": [{"CidrIp": source, "Description": "who started the cluster"}]}
    _allow(clients.ec2.authorize_security_group_ingress, group, [*among, login])
    _allow(clients.ec2.authorize_security_group_egress, group, among)
    return group


def _group(clients: Clients, name: str, vpc: str, tags: Mapping[str, str]) -> str:
    try:
        with explain_errors():
            made = clients.ec2.create_security_group(
                GroupName=name,
                Description="One cluster of jupyter_sky; goes with it",
                VpcId=vpc,
                TagSpecifications=tag_specification("security-group", tags),
            )
        return str(made["GroupId"])
    except AWSError as error:
        # The answer to a first attempt was lost.
        if error.code != "InvalidGroup.Duplicate":
            raise
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    with explain_errors():
        [found] = clients.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    return str(found["GroupId"])


def _allow(function: Any, group: str, rules: list[dict[str, Any]]) -> None:
    try:
        with explain_errors():
            function(GroupId=group, IpPermissions=rules)
    except AWSError as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
