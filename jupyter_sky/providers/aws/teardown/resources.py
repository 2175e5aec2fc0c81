"""The EC2 resources of clusters, found by their tags: each kind for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.formatting import format_count
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import UNREACHABLE, AWSError, explain_errors
from jupyter_sky.providers.aws.tags import BY, ID, NAME, OWNER, USER, made_at, tags_of

COSTLY = ("pending", "running", "stopping", "stopped")
"""States of instances that cost something, if only for their disks."""

LIVING = (*COSTLY, "shutting-down")
"""States of instances that may still be there."""

INSTANCES = "instances"
"""The kind that costs most; see `EC2Resources`."""


@dataclass
class EC2Resources:
    """What a cluster has in a region.

    Attributes
    ----------
    id, region, name
        The cluster, and where it is.
    owner, started_by, user, since
        The id of the registry that it belongs to, user and computer, the user of AWS, and when the
        newest of it was made, as far as tags tell.
    instances, volumes, spot_requests, groups, keys, placements
        The ids of instances, disks, requests and security groups; names of key pairs and
        placement groups.
    ending
        Those of the instances that shut down, which cost nothing any more.
    """

    id: str
    region: str
    name: str = ""
    owner: str = ""
    started_by: str = ""
    user: str = ""
    since: float = 0.0
    instances: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    spot_requests: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    placements: list[str] = field(default_factory=list)
    ending: list[str] = field(default_factory=list)

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


def look(
    clients: Clients, identity: str | None = None
) -> tuple[list[EC2Resources], dict[str, AWSError]]:
    """Return what clusters have in a region, and which kinds could not be looked for, and why.

    Parameters
    ----------
    identity
        The cluster that is looked for; ``None`` looks for all.
    """
    found: dict[str, EC2Resources] = {}
    unseen: dict[str, AWSError] = {}
    ours = {"Name": f"tag:{ID}", "Values": [identity or "*"]}
    for kind, described in _KINDS.items():
        try:
            with explain_errors():
                each_of_kind = list(described(clients.ec2, ours))
        except AWSError as error:
            unseen[kind] = error
            if error.code == UNREACHABLE:
                return list(found.values()), {**dict.fromkeys(_KINDS, error), **unseen}
            continue
        for name, each in each_of_kind:
            tags = tags_of(each)
            resources = found.setdefault(tags[ID], EC2Resources(tags[ID], clients.region))
            resources.name = resources.name or tags.get(NAME, "")
            resources.owner = resources.owner or tags.get(OWNER, "")
            resources.started_by = resources.started_by or tags.get(BY, "")
            resources.user = resources.user or tags.get(USER, "")
            resources.since = max(resources.since, made_at(tags))
            getattr(resources, kind).append(name)
            if kind == INSTANCES and each["State"]["Name"] not in COSTLY:
                resources.ending.append(name)
    return list(found.values()), unseen


_Filter = dict[str, Any]
_Found = Iterator[tuple[str, dict[str, Any]]]


def _instances(ec2: Any, ours: _Filter) -> _Found:
    living = {"Name": "instance-state-name", "Values": list(LIVING)}
    pages = ec2.get_paginator("describe_instances").paginate(Filters=[ours, living])
    for each in pages.search("Reservations[].Instances[]"):
        yield each["InstanceId"], each


def _spot_requests(ec2: Any, ours: _Filter) -> _Found:
    open_ones = {"Name": "state", "Values": ["open", "active"]}
    pages = ec2.get_paginator("describe_spot_instance_requests").paginate(Filters=[ours, open_ones])
    for each in pages.search("SpotInstanceRequests[]"):
        yield each["SpotInstanceRequestId"], each


def _volumes(ec2: Any, ours: _Filter) -> _Found:
    pages = ec2.get_paginator("describe_volumes").paginate(Filters=[ours])
    for each in pages.search("Volumes[]"):
        yield each["VolumeId"], each


def _groups(ec2: Any, ours: _Filter) -> _Found:
    pages = ec2.get_paginator("describe_security_groups").paginate(Filters=[ours])
    for each in pages.search("SecurityGroups[]"):
        yield each["GroupId"], each


def _keys(ec2: Any, ours: _Filter) -> _Found:
    for each in ec2.describe_key_pairs(Filters=[ours])["KeyPairs"]:
        yield each["KeyName"], each


def _placements(ec2: Any, ours: _Filter) -> _Found:
    for each in ec2.describe_placement_groups(Filters=[ours])["PlacementGroups"]:
        if each.get("State") != "deleted":
            yield each["GroupName"], each


_KINDS: Mapping[str, Callable[[Any, _Filter], _Found]] = {
    INSTANCES: _instances,
    "spot_requests": _spot_requests,
    "volumes": _volumes,
    "groups": _groups,
    "keys": _keys,
    "placements": _placements,
}
