"""What clusters hold at AWS: finding it by its tags, and giving all of it back.

Giving back is the one thing that must not fail half-way: each step is tried whatever became of the
others, and only what was seen to be gone counts as gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.providers.aws.clients import AWSError, Clients, explained
from jupyter_sky.providers.aws.ec2 import tags
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of

GONE_WITHIN = 900.0
"""Seconds for instances to be terminated; large ones with GPUs take minutes."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 15.0
_PATIENCE = 4  # refusals, each of which was tried several times
_LIVING = ("pending", "running", "shutting-down", "stopping", "stopped")


@dataclass
class Held:
    """What a cluster holds in a region.

    Attributes
    ----------
    id, name, owner, by
        The cluster, whose registry it belongs to, and who started it, as far as tags tell.
    instances, volumes, spot_requests, groups, keys, placements
        The ids of instances, disks, requests and security groups; names of key pairs and
        placement groups.
    """

    id: str
    region: str
    name: str = ""
    owner: str = ""
    by: str = ""
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
            f"{len(found)} {word}{'s' * (len(found) > 1)}"
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


def find(clients: Clients, identity: str | None = None) -> list[Held]:
    """Return what clusters hold in a region.

    Parameters
    ----------
    identity
        The cluster that is looked for; ``None`` looks for all that is ours.
    """
    found: dict[str, Held] = {}
    for kind, name, said in _tagged(clients.ec2, identity or "*"):
        marks = tags.read(said)
        holding = found.setdefault(marks[tags.ID], Held(marks[tags.ID], clients.region))
        holding.name = holding.name or marks.get(tags.NAME, "")
        holding.owner = holding.owner or marks.get(tags.OWNER, "")
        holding.by = holding.by or marks.get(tags.BY, "")
        getattr(holding, kind).append(name)
    return list(found.values())


def give_back(clients: Clients, identity: str, progress: Callable[[str], None]) -> None:
    """End everything that a cluster holds, and return when it is seen to be gone.

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
            found = find(clients, identity)
            if not found:
                keys_of(identity).remove()
                return
            [holding] = found
            left = str(holding)
            trouble = _give_back(clients.ec2, holding)
            if told != left:
                progress(f"waiting until it is gone: {left}")
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
    """End some of a cluster's instances, and return when they are seen to be gone.

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
        with explained():
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
                f"{', '.join(left)} in {clients.place} may still be there and cost money: "
                "type `%sky down` to end the whole cluster."
            )
        time.sleep(pause if left else 0)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _give_back(ec2: Any, holding: Held) -> str:
    """Take one step with everything, and return what was refused that may never be granted."""
    trouble = ""

    def attempt(function: Callable[..., Any], **arguments: Any) -> None:
        nonlocal trouble
        try:
            with explained():
                function(**arguments)
        except AWSError as error:
            # What hangs together goes in the next round, when the other part is gone.
            if "NotFound" not in error.code and "Unknown" not in error.code:
                trouble = trouble if error.code in _LATER else str(error)

    if holding.spot_requests:
        attempt(ec2.cancel_spot_instance_requests, SpotInstanceRequestIds=holding.spot_requests)
    if holding.instances:
        attempt(ec2.terminate_instances, InstanceIds=holding.instances)
    for name in holding.keys:
        attempt(ec2.delete_key_pair, KeyName=name)
    if not holding.instances:
        for name in holding.volumes:
            attempt(ec2.delete_volume, VolumeId=name)
        for name in holding.groups:
            attempt(ec2.delete_security_group, GroupId=name)
        for name in holding.placements:
            attempt(ec2.delete_placement_group, GroupName=name)
    return trouble


_LATER = ("DependencyViolation", "InvalidPlacementGroup.InUse", "VolumeInUse", "IncorrectState")


def _tagged(ec2: Any, identity: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what bears our tag: the kind of thing, its id, and what AWS says of it."""
    ours = {"Name": f"tag:{tags.ID}", "Values": [identity]}

    def pages(operation: str, *more: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with explained():
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
    with explained():
        for each in ec2.describe_key_pairs(Filters=[ours])["KeyPairs"]:
            yield "keys", each["KeyName"], each
        for each in ec2.describe_placement_groups(Filters=[ours])["PlacementGroups"]:
            if each.get("State") != "deleted":
                yield "placements", each["GroupName"], each
