"""The security group of a cluster, which says who reaches its instances."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws import retries
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.tags import ID, tag_specification

_STARTER = "who started the cluster"
"""What is said of the address of a notebook; where it has another one later, this follows."""

_GIVEN = "as ssh_from says"

_SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}


def make_security_group(
    clients: Clients,
    name: str,
    vpc: str,
    source: str | None,
    tags: Mapping[str, str],
    is_given: bool = False,
) -> str:
    """Make the security group of a cluster and return its id.

    Its instances reach each other at all ports, ``source`` reaches them over SSH if it is
    given, and nobody else does. EFA needs a rule of its own for what leaves, beside the usual one
    for all that leaves.

    Parameters
    ----------
    is_given
        Whether the user has said who may log in: what is asked for stays then, wherever the
        notebook is.
    """
    group = _group(clients, name, vpc, tags)
    among = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    _allow(clients.ec2.authorize_security_group_ingress, group, among)
    if source is not None:
        _allow(clients.ec2.authorize_security_group_ingress, group, _login(source, is_given))
    _allow(clients.ec2.authorize_security_group_egress, group, among)
    return group


def check_group(clients: Clients, group: str, vpc: str, source: str | None) -> str:
    """Return the id of a security group of the user's, to which nothing is changed.

    Parameters
    ----------
    source
        Who logs in, as CIDR; ``None`` where nobody does at a port.

    Raises
    ------
    UsageError
        When it is not there, or in another network, or does not let in who has to be.
    """
    try:
        with explain_errors():
            [said] = clients.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    except AWSError as error:
        if not error.code.startswith("InvalidGroup"):
            raise
        raise UsageError(
            f"there is no security group {group} in {clients.region}: "
            "`aws ec2 describe-security-groups` in a terminal lists them."
        ) from None
    if said["VpcId"] != vpc:
        raise UsageError(
            f"the security group {group} is in {said['VpcId']}, and the subnet in {vpc}: name a "
            "subnet of that network."
        )
    rules = said["IpPermissions"]
    if source is not None and not any(_admits(rule, source) for rule in rules):
        raise UsageError(
            f"the security group {group} does not let in {source} at port 22: add that rule, or "
            "name another group."
        )
    if not any(rule["IpProtocol"] == "-1" and _names(rule, group) for rule in rules):
        raise UsageError(
            f"the security group {group} does not let its own members reach each other at all "
            "ports, which nodes do: add that rule, or name another group."
        )
    return group


def _admits(rule: Mapping[str, Any], source: str) -> bool:
    """Return whether a rule lets in a CIDR at the port of SSH, as far as it can be seen."""
    if rule["IpProtocol"] not in ("-1", "tcp"):
        return False
    if rule["IpProtocol"] == "tcp" and not rule["FromPort"] <= _SSH["FromPort"] <= rule["ToPort"]:
        return False
    here = ipaddress.IPv4Network(source)
    nets = [ipaddress.IPv4Network(each["CidrIp"]) for each in rule.get("IpRanges", ())]
    # What lists of prefixes have is not looked up.
    return any(here.subnet_of(net) for net in nets) or bool(rule.get("PrefixListIds"))


def _names(rule: Mapping[str, Any], group: str) -> bool:
    return any(each.get("GroupId") == group for each in rule.get("UserIdGroupPairs", ()))


def find_groups(clients: Clients, identity: str) -> list[dict[str, Any]]:
    """Return what AWS says of the security groups of a cluster, or of all (``"*"``)."""
    ours = [{"Name": f"tag:{ID}", "Values": [identity]}]
    with explain_errors():
        pages = clients.ec2.get_paginator("describe_security_groups").paginate(Filters=ours)
        return [*pages.search("SecurityGroups[]")]


def who_may_log_in(group: Mapping[str, Any]) -> dict[str, bool]:
    """Return who may log in, as CIDR, and whether that follows the notebook."""
    return {
        each["CidrIp"]: each.get("Description") == _STARTER
        for rule in group["IpPermissions"]
        if rule.get("FromPort") == _SSH["FromPort"]
        for each in rule.get("IpRanges", ())
    }


def is_let_in(group: Mapping[str, Any], address: str) -> bool:
    """Return whether an address may log in."""
    here = ipaddress.ip_address(address)
    return any(here in ipaddress.ip_network(each) for each in who_may_log_in(group))


def admit(clients: Clients, group: Mapping[str, Any], source: str, is_given: bool = False) -> None:
    """Let the notebook log in from where it is now, and no more from where it was.

    Parameters
    ----------
    group
        What AWS says of the security group.
    source
        As CIDR.
    """
    now = who_may_log_in(group)
    number = group["GroupId"]
    if source not in now:
        _allow(clients.ec2.authorize_security_group_ingress, number, _login(source, is_given))
    for stale, follows in now.items():
        if follows and stale != source and not is_given:
            with explain_errors("InvalidPermission.NotFound"):  # another notebook was faster
                clients.ec2.revoke_security_group_ingress(
                    GroupId=number, IpPermissions=[_login(stale, is_given=False)]
                )


def _login(source: str, is_given: bool) -> dict[str, Any]:
    description = _GIVEN if is_given else _STARTER
    return {**_SSH, "IpRanges": [{"CidrIp": source, "Description": description}]}


def _group(clients: Clients, name: str, vpc: str, tags: Mapping[str, str]) -> str:
    with explain_errors("InvalidGroup.Duplicate"):
        made = clients.ec2.create_security_group(
            GroupName=name,
            Description="One cluster of jupyter_sky; goes with it",
            VpcId=vpc,
            TagSpecifications=tag_specification("security-group", tags),
        )
        return str(made["GroupId"])
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    for attempt in range(1, retries.ATTEMPTS):
        with explain_errors():
            found = clients.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
        if found:
            return str(found[0]["GroupId"])
        # Not each of AWS's servers knows of it yet.
        retries.pause_after(attempt)
    raise AWSError(f"AWS says that there is a security group {name}, and does not find it.")


def _allow(function: Callable[..., Any], group: str, rule: Mapping[str, Any]) -> None:
    """Add a rule: one at a time, so that one that is there keeps no other from being added."""
    with explain_errors("InvalidPermission.Duplicate"):
        function(GroupId=group, IpPermissions=[rule])
