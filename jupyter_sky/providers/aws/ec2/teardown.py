"""The EC2 resources of clusters: finding them by their tags, and releasing all of them.

Releasing is the one thing that must not fail half-way: each step is tried whatever became of the
others, and only what was seen to be gone counts as gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.formatting import format_count
from jupyter_sky.providers.aws.clients import AWSError, Clients, explain_errors
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.tags import BY, ID, NAME, OWNER, tags_of

GONE_WITHIN = 900.0
"""Seconds for instances to be terminated; large ones with GPUs take minutes."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 15.0
_PATIENCE = 4  # refusals, each of which was tried several times
# Refusals that end by themselves when something else is gone.
_LATER = ("DependencyViolation", "InvalidPlacementGroup.InUse", "VolumeInUse", "IncorrectState")
_LIVING = ("pending", "running", "shutting-down", "stopping", "stopped")


@dataclass
class EC2Resources:
    """What a cluster has in a region.

    Attributes
    ----------
    id, region, name
        The cluster, and where it is.
    owner, started_by
        The id of the registry that it belongs to, and user and computer, as far as tags tell.
    instances, volumes, spot_requests, groups, keys, placements
        The ids of instances, disks, requests and security groups; names of key pairs and
        placement groups.
    """

    id: str
    region: str
    name: str = ""
    owner: str = ""
    started_by: str = ""
    instances: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    spot_requests: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    placements: list[str] = field(default_factory=list)

    @property
    def what(self) -> str:
        """What it is, in words."""
        parts = [
            format_count(len(found), word)
            for word, found in (
                ("instance", self.instances),
                ("disk", self.volumes),
                ("spot request", self.spot_requests),
                ("security group", self.groups),
                ("key pair", self.keys),
                ("placement group", self.placements),
            )
            if found
        ]
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.name or self.id}: {self.what} in {self.region}"


def find_resources(clients: Clients, identity: str | None = None) -> list[EC2Resources]:
    """Return what clusters have in a region.

    Parameters
    ----------
    identity
        The cluster that is looked for; ``None`` looks for all.
    """
    found: dict[str, EC2Resources] = {}
    for kind, name, described in _tagged(clients.ec2, identity or "*"):
        tags = tags_of(described)
        resources = found.setdefault(tags[ID], EC2Resources(tags[ID], clients.region))
        resources.name = resources.name or tags.get(NAME, "")
        resources.owner = resources.owner or tags.get(OWNER, "")
        resources.started_by = resources.started_by or tags.get(BY, "")
        getattr(resources, kind).append(name)
    return list(found.values())


def release(clients: Clients, identity: str, report: Callable[[str], None]) -> None:
    """Release everything that a cluster has, and return when it is seen to be gone.

    Raises
    ------
    AWSError
        When something may still be there; it says what, and what to do about it.
    """
    deadline = time.monotonic() + GONE_WITHIN
    pause, refusals, told = _FIRST_PAUSE, 0, ""
    while True:
        left, trouble = f"cluster {identity} in {clients.region}", ""
        try:
            found = find_resources(clients, identity)
            if not found:
                keys_of(identity).remove()
                return
            [resources] = found
            left = str(resources)
            trouble = _release_step(clients.ec2, resources)
            if told != left:
                report(f"waiting until it is gone: {left}")
                told = left
        except AWSError as error:
            trouble = str(error)
        refusals += bool(trouble)
        if refusals == _PATIENCE or time.monotonic() > deadline:
            raise AWSError(
                f"something may still be there and cost money ({left}), type `%sky gc` to try "
                f"again: {trouble or 'it takes very long.'}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def terminate(clients: Clients, instances: Sequence[str]) -> None:
    """Terminate some of a cluster's instances, and return when they are seen to be gone.

    Raises
    ------
    AWSError
        When one may still be there.
    """
    deadline = time.monotonic() + GONE_WITHIN
    pause, left = _FIRST_PAUSE, list(instances)
    while left:
        wanted = [
            {"Name": "instance-id", "Values": left},
            {"Name": "instance-state-name", "Values": list(_LIVING)},
        ]
        with explain_errors():
            pages = clients.ec2.get_paginator("describe_instances").paginate(Filters=wanted)
            left = [
                each["InstanceId"]
                for page in pages
                for reservation in page["Reservations"]
                for each in reservation["Instances"]
            ]
            if left:
                clients.ec2.terminate_instances(InstanceIds=left)
        if left and time.monotonic() > deadline:
            raise AWSError(
                f"{', '.join(left)} in {clients.location} may still be there and cost money: "
                "type `%sky down` to end the whole cluster."
            )
        time.sleep(pause if left else 0)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _release_step(ec2: Any, resources: EC2Resources) -> str:
    """Release what can be released now; return what was refused that may never be granted."""
    trouble = ""

    def attempt(function: Callable[..., Any], **arguments: Any) -> None:
        nonlocal trouble
        try:
            with explain_errors():
                function(**arguments)
        except AWSError as error:
            # What something else depends on goes in the next round, when that is gone.
            if "NotFound" not in error.code and "Unknown" not in error.code:
                trouble = trouble if error.code in _LATER else str(error)

    if resources.spot_requests:
        attempt(ec2.cancel_spot_instance_requests, SpotInstanceRequestIds=resources.spot_requests)
    if resources.instances:
        attempt(ec2.terminate_instances, InstanceIds=resources.instances)
    for name in resources.keys:
        attempt(ec2.delete_key_pair, KeyName=name)
    if not resources.instances:
        for name in resources.volumes:
            attempt(ec2.delete_volume, VolumeId=name)
        for name in resources.groups:
            attempt(ec2.delete_security_group, GroupId=name)
        for name in resources.placements:
            attempt(ec2.delete_placement_group, GroupName=name)
    return trouble


def _tagged(ec2: Any, identity: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what has our tag: the kind of resource, its id, and what AWS says of it."""
    ours = {"Name": f"tag:{ID}", "Values": [identity]}

    def pages(operation: str, *more: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with explain_errors():
            yield from ec2.get_paginator(operation).paginate(Filters=[ours, *more])

    living = {"Name": "instance-state-name", "Values": list(_LIVING)}
    for page in pages("describe_instances", living):
        for reservation in page["Reservations"]:
            for each in reservation["Instances"]:
                yield "instances", each["InstanceId"], each
    open_ones = {"Name": "state", "Values": ["open", "active"]}
    for page in pages("describe_spot_instance_requests", open_ones):
        for each in page["SpotInstanceRequests"]:
            yield "spot_requests", each["SpotInstanceRequestId"], each
    for page in pages("describe_volumes"):
        for each in page["Volumes"]:
            yield "volumes", each["VolumeId"], each
    for page in pages("describe_security_groups"):
        for each in page["SecurityGroups"]:
            yield "groups", each["GroupId"], each
    with explain_errors():
        for each in ec2.describe_key_pairs(Filters=[ours])["KeyPairs"]:
            yield "keys", each["KeyName"], each
        for each in ec2.describe_placement_groups(Filters=[ours])["PlacementGroups"]:
            if each.get("State") != "deleted":
                yield "placements", each["GroupName"], each
