"""The image that instances boot from: the newest Ubuntu, with NVIDIA's driver for GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import AWSError, Clients, explained
from jupyter_sky.providers.aws.ec2.tags import ID, read
from jupyter_sky.providers.aws.market.instance_types import InstanceType

_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id"
_DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
_DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An image.

    Attributes
    ----------
    user
        Whom it lets in.
    device, size
        The name of its disk, and the GB that it needs at least.
    snapshot
        The name of the snapshot that it is; empty if it is none.
    """

    id: str
    user: str
    device: str
    size: int
    snapshot: str = ""


def image(clients: Clients, machine: InstanceType, given: str | None, user: str | None) -> Image:
    """Return the image for a type of machine.

    Parameters
    ----------
    given, user
        The person's own image, and whom it lets in; by default the name of the image tells.
    """
    number = given or _newest(clients, machine)
    try:
        with explained():
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
    [said] = found
    if said["Architecture"] != machine.architecture:
        raise UsageError(
            f"the image {number} is for {said['Architecture']}, and {machine.name} is "
            f"{machine.architecture}: name another image, or another --instance-type."
        )
    # A snapshot of ours has its name as a tag, also where it is asked for by its number.
    snapshot = read(said).get(ID, "")
    return Image(number, user or _user(said), said["RootDeviceName"], _size(said), snapshot)


def _newest(clients: Clients, machine: InstanceType) -> str:
    arch = machine.architecture
    name = (
        _DEEP_LEARNING.format(arch=arch)
        if machine.is_cuda
        else _UBUNTU.format(arch=_DEBIAN_NAMES[arch])
    )
    with explained():
        return str(clients.ssm.get_parameter(Name=name)["Parameter"]["Value"])


def _user(said: dict[str, Any]) -> str:
    about = f"{said.get('Name', '')} {said.get('Description', '')}".lower()
    if "ubuntu" in about:
        return "ubuntu"
    return "admin" if "debian" in about else "ec2-user"


def _size(said: dict[str, Any]) -> int:
    for mapping in said.get("BlockDeviceMappings", ()):
        if mapping.get("DeviceName") == said["RootDeviceName"]:
            return int(mapping.get("Ebs", {}).get("VolumeSize") or 0)
    return 0
