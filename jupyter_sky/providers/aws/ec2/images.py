"""The machine image (AMI) that instances boot from: the newest Ubuntu, with NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.market.instance_types import InstanceType
from jupyter_sky.providers.aws.tags import ID, tags_of

_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id"
_DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
_DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class MachineImage:
    """A machine image.

    Attributes
    ----------
    id
        Its AMI id.
    user
        The user that it lets in.
    device, size
        The name of the disk that it boots from, and the GB that it needs at least.
    snapshot
        The name of the snapshot of ours that it is; empty if it is none.
    others
        The GB of further disks that it brings, by their names.
    """

    id: str
    user: str
    device: str
    size: int
    snapshot: str = ""
    others: Mapping[str, int] = field(default_factory=dict)


def find_image(
    clients: Clients, machine: InstanceType, given: str | None, user: str | None
) -> MachineImage:
    """Return the image for a type of machine.

    Parameters
    ----------
    given
        The id of the user's own image; by default the newest Ubuntu.
    user
        The user that it lets in; by default what its name tells.

    Raises
    ------
    UsageError
        When there is no such image, or it is for another kind of processor.
    """
    number = given or _newest(clients, machine)
    try:
        with explain_errors():
            found = clients.ec2.describe_images(ImageIds=[number])["Images"]
    except AWSError as error:
        if not error.code.startswith("InvalidAMIID"):
            raise
        found = []
    if not found:
        raise UsageError(
            f"there is no image {number} in {clients.region} that you may use: images belong to "
            "one region each."
        )
    [described] = found
    if described["Architecture"] != machine.architecture:
        raise UsageError(
            f"the image {number} is for {described['Architecture']}, and {machine.name} is "
            f"{machine.architecture}: name another image, or another --instance-type."
        )
    # A snapshot of ours has its name as a tag, also where it is asked for by its number.
    snapshot = tags_of(described).get(ID, "")
    device, disks = described["RootDeviceName"], disks_of(described)
    size = disks.pop(device, 0)
    return MachineImage(number, user or _user(described), device, size, snapshot, disks)


def disks_of(described: Mapping[str, Any]) -> dict[str, int]:
    """Return the GB of each disk of an image that AWS has described, by its name.

    What is only as long as the instance, and costs nothing, is not among them.
    """
    return {
        mapping["DeviceName"]: int(mapping["Ebs"].get("VolumeSize") or 0)
        for mapping in described.get("BlockDeviceMappings", ())
        if mapping.get("Ebs")
    }


def _newest(clients: Clients, machine: InstanceType) -> str:
    arch = machine.architecture
    name = (
        _DEEP_LEARNING.format(arch=arch)
        if machine.is_cuda
        else _UBUNTU.format(arch=_DEBIAN_NAMES[arch])
    )
    with explain_errors():
        return str(clients.ssm.get_parameter(Name=name)["Parameter"]["Value"])


def _user(described: dict[str, Any]) -> str:
    about = f"{described.get('Name', '')} {described.get('Description', '')}".lower()
    if "ubuntu" in about:
        return "ubuntu"
    return "admin" if "debian" in about else "ec2-user"
