"""Snapshots: images of prepared nodes, found again by what is installed on them.

A snapshot is an AMI and the disks that it is made of, which cost for as long as they are kept. All
of it bears its name as a tag, so that nothing of one is forgotten that was removed half-way.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import as_sentence, format_dollars, format_duration
from jupyter_sky.providers.aws.clients import Clients, did_you_mean
from jupyter_sky.providers.aws.ec2.images import MachineImage, disks_of
from jupyter_sky.providers.aws.errors import UNREACHABLE, AWSError, explain_errors
from jupyter_sky.providers.aws.local_store import owner
from jupyter_sky.providers.aws.market.instance_types import InstanceType
from jupyter_sky.providers.aws.tags import (
    BY,
    ID,
    NAME,
    OWNER,
    USER,
    cluster_tags,
    tag_specification,
    tags_of,
)
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.setup.packages.recipe import recipe_for

MADE_WITHIN = 3600.0
"""Seconds for AWS to make one; a hundred gigabytes take some minutes."""

GB_MONTH = 0.05
"""Dollars that AWS takes for a gigabyte of a snapshot each month, in most regions."""

_KEY = "jupyter-sky-content"
_USER = "jupyter-sky-login"
_PAUSE = 2.0
_GOOD = {"available": "exists already", "pending": "is being made already"}


@dataclass
class NodeSnapshot:
    """An image of a prepared node.

    Attributes
    ----------
    name, key, user
        What it is called, what is installed on it, and whom it lets in.
    image
        The AMI's id; empty if only disks are left of it.
    state, device, made
        What AWS says of the AMI.
    disks, of_devices
        The ids of its disks, and the gigabytes of each; the same by the names of its devices.
    is_ours, made_by
        Whether the user has made it, and user and computer that have.
    """

    name: str
    key: str
    user: str
    image: str = ""
    state: str = ""
    device: str = ""
    made: str = ""
    disks: dict[str, int] = field(default_factory=dict)
    of_devices: dict[str, int] = field(default_factory=dict)
    is_ours: bool = False
    made_by: str = ""

    @property
    def gigabytes(self) -> int:
        """What its disks hold at most."""
        return sum(self.disks.values())

    def __str__(self) -> str:
        cost = format_dollars(GB_MONTH * self.gigabytes)
        when = f" of {self.made[:10]}" if self.made else ""
        return f"{self.name}{when}, {self.gigabytes} GB for at most about {cost} a month"


def content(image: Image, python: str | None, given: str | None) -> str:
    """Return a name for what is installed on a node.

    Parameters
    ----------
    image
        The cluster's image; what it has of variables and files goes to nodes at each start.
    python
        The interpreter that is used, in place of an environment for the image.
    given
        The id of the user's own AMI.
    """
    installed = recipe_for(image).digest("") if python is None else python
    text = json.dumps([installed, sorted(image.apt), given])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def key(installed: str, kind: InstanceType) -> str:
    """Return what a snapshot is found by: what is installed, for which kind of machine."""
    return f"{installed}-{kind.architecture}{'-cuda' if kind.is_cuda else ''}"


def bootable(clients: Clients, wanted: str) -> MachineImage | None:
    """Return the user's newest snapshot with such a key, to boot from.

    Others' are never booted from unasked: what is on them runs, and has the user's data.
    """
    fitting = [
        each for each in _images(clients, wanted) if each.state == "available" and each.is_ours
    ]
    if not fitting:
        return None
    newest = max(fitting, key=lambda each: each.made)
    others = {**newest.of_devices}
    size = others.pop(newest.device, 0)
    return MachineImage(newest.image, newest.user, newest.device, size, newest.name, others)


def every(clients: Clients) -> list[NodeSnapshot]:
    """Return all snapshots of a region, also what is left of some."""
    # Disks come first: those of an image that is made meanwhile would seem to be left of one.
    with explain_errors():
        pages = clients.ec2.get_paginator("describe_snapshots").paginate(
            OwnerIds=["self"], Filters=[{"Name": f"tag:{_KEY}", "Values": ["*"]}]
        )
        disks = [*pages.search("Snapshots[]")]
    found = {each.name: each for each in _images(clients, "*")}
    for described in disks:
        tags = tags_of(described)
        name = tags[ID]
        rest = NodeSnapshot(name, tags.get(_KEY, ""), tags.get(_USER, ""))
        rest.is_ours, rest.made_by = _is_ours(clients, tags), tags.get(BY, "")
        snapshot = found.setdefault(name, rest)
        snapshot.disks[described["SnapshotId"]] = _gigabytes(described)
    return sorted(found.values(), key=lambda each: each.made)


def make(
    clients: Clients, instance: str, wanted: str, user: str, report: Callable[[str], None]
) -> NodeSnapshot:
    """Make a snapshot of an instance that goes on running; return when it can be used.

    Parameters
    ----------
    instance
        Its id.
    wanted
        The key by which the snapshot is found.
    """
    for there in _images(clients, wanted):
        if there.is_ours and there.state in _GOOD:
            raise UsageError(
                f"a snapshot of what is installed here {_GOOD[there.state]}, {there.name}: "
                f"`%sky snapshot --remove {there.name}` removes it."
            )
    name = f"jupyter-sky-{wanted[:8]}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    tags = {**cluster_tags(name, name, clients.user), "Name": name, _KEY: wanted, _USER: user}
    del tags[NAME]
    is_asked = False
    try:
        with explain_errors("InvalidAMIName.Duplicate"):
            clients.ec2.create_image(
                InstanceId=instance,
                Name=name,
                Description="A prepared node of jupyter_sky",
                # It would end what runs.
                NoReboot=True,
                TagSpecifications=tag_specification(("image", "snapshot"), tags),
            )
        is_asked = True
        return _made(clients, name, report)
    except SkyError as error:
        is_lost = isinstance(error, AWSError) and error.code == UNREACHABLE
        if not is_asked and not is_lost:
            raise
        raise SkyError(
            f"{as_sentence(str(error))} What AWS has made of {name}, or goes on making, costs: "
            f"`%sky snapshot --remove {name}` removes it."
        ) from None
    except KeyboardInterrupt:
        # AWS would go on making it: it would cost, and later clusters would boot from it.
        try:
            if any(each.name == name for each in every(clients)):
                remove(clients, name)
        except BaseException:
            left = f"The snapshot {name} may be left: `%sky snapshot --remove {name}` removes it."
            raise SkyError(left) from None
        raise


def _made(clients: Clients, name: str, report: Callable[[str], None]) -> NodeSnapshot:
    """Return a snapshot that AWS makes, when it can be used."""
    start = time.monotonic()
    while True:
        report(f"AWS makes the snapshot {name}; the cluster can be used meanwhile")
        found = [each for each in every(clients) if each.name == name]
        state = found[0].state if found else "pending"
        if state == "available":
            return found[0]
        if state != "pending":
            raise SkyError(f"AWS could not make the snapshot {name}: it is {state}.")
        if time.monotonic() - start > MADE_WITHIN:
            within = format_duration(MADE_WITHIN)
            raise SkyError(f"AWS has not made the snapshot {name} within {within}.")
        time.sleep(_PAUSE)


def remove(clients: Clients, name: str) -> NodeSnapshot:
    """Remove a snapshot, and return what it was."""
    known = {each.name: each for each in every(clients)}
    snapshot = known.get(name)
    if snapshot is None:
        instead = did_you_mean(name, known) if known else "there are none."
        raise UsageError(f"there is no snapshot {name} in {clients.location}: {instead}")
    if not snapshot.is_ours:
        raise UsageError(
            f"{name} is a snapshot of {snapshot.made_by or 'somebody else'}, who can remove it."
        )
    if snapshot.image:
        with explain_errors():
            clients.ec2.deregister_image(ImageId=snapshot.image)
    for disk in snapshot.disks:
        with explain_errors("InvalidSnapshot.NotFound"):
            clients.ec2.delete_snapshot(SnapshotId=disk)
    return snapshot


def _images(clients: Clients, wanted: str) -> list[NodeSnapshot]:
    ours = [{"Name": f"tag:{_KEY}", "Values": [wanted]}]
    with explain_errors():
        found = clients.ec2.describe_images(Owners=["self"], Filters=ours)["Images"]
    return [_read(clients, described) for described in found]


def resolve(
    clients: Clients, given: str | None, question: Callable[[str, str], None]
) -> str | None:
    """Return the id of the image that the user asks for, by its id or by the name of a snapshot.

    Parameters
    ----------
    question
        Asks the user, with what to do instead; it raises where the answer is no.
    """
    if given is None:
        return None
    found = [each for each in _images(clients, "*") if given in (each.image, each.name)]
    if not found:
        return given
    if not found[0].is_ours:
        maker = found[0].made_by or "somebody else"
        question(
            f"Boot from {found[0].name}, a snapshot that {maker} has made? What is on it runs with "
            "your data.",
            "name another --image-id",
        )
    return found[0].image


def _is_ours(clients: Clients, tags: Mapping[str, str]) -> bool:
    return tags.get(OWNER) == owner() or bool(clients.user and tags.get(USER) == clients.user)


def _read(clients: Clients, described: dict[str, Any]) -> NodeSnapshot:
    tags = tags_of(described)
    disks = {
        ebs["SnapshotId"]: int(ebs.get("VolumeSize") or 0)
        for mapping in described.get("BlockDeviceMappings", ())
        if "SnapshotId" in (ebs := mapping.get("Ebs", {}))
    }
    return NodeSnapshot(
        name=described["Name"],
        key=tags[_KEY],
        user=tags.get(_USER, ""),
        image=described["ImageId"],
        state=described["State"],
        device=described["RootDeviceName"],
        made=described["CreationDate"],
        disks=disks,
        of_devices=disks_of(described),
        is_ours=_is_ours(clients, tags),
        made_by=tags.get(BY, ""),
    )


def _gigabytes(described: dict[str, Any]) -> int:
    """Return what a disk holds, or what it can hold where AWS does not tell."""
    size = described.get("FullSnapshotSizeInBytes")
    return -(-size // 2**30) if size else int(described["VolumeSize"])
