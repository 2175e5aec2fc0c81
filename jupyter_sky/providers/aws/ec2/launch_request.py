"""The request for the instances of a cluster: one ``RunInstances`` for all of its nodes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.providers.aws.ec2 import user_data
from jupyter_sky.providers.aws.ec2.images import MachineImage
from jupyter_sky.providers.aws.ec2.key_pairs import ClusterKeys
from jupyter_sky.providers.aws.market import storage
from jupyter_sky.providers.aws.market.besides import Besides
from jupyter_sky.providers.aws.market.limits import Limits
from jupyter_sky.providers.aws.market.selection import InstanceOffer
from jupyter_sky.providers.aws.network.address import caller_cidr
from jupyter_sky.providers.aws.network.subnets import Subnet
from jupyter_sky.providers.aws.tags import name_of, tag_specification


@dataclass(frozen=True)
class LaunchRequest:
    """The instances to rent for a cluster.

    Attributes
    ----------
    identity, tags
        The cluster's id, and the tags of all that is made for it.
    nodes
        Number of instances.
    offers
        Types to try, the best first.
    image_id, user
        The user's own image, and the name of the user that it lets in.
    installed
        What is installed on nodes: a snapshot that has it is booted from.
    disk
        Gigabytes of disk of each.
    subnets
        Those to be in, in this order, in place of the default ones.
    security_group
        The id of the one to be in, in place of one that is made.
    ssm
        Whether they are reached by sessions of Systems Manager, and nobody may log in at a port.
    bastion
        A host that they are reached through.
    private
        Whether instances have private addresses only.
    ssh_from
        Who may log in, as CIDR, in place of this computer alone.
    profile
        The name of the instance profile.
    together
        Whether the cluster is one of several nodes, which are placed close together.
    placement
        Whether such nodes may be placed close together.
    kms_key, reservation
        What encrypts the disks, and what is reserved for the instances.
    limits
        What all nodes may cost, and with that for how long they run.
    watch_every
        Seconds between two looks of an instance at whether it has an agent.
    besides
        What is paid besides instances.
    """

    identity: str
    nodes: int
    tags: Mapping[str, str]
    offers: Sequence[InstanceOffer]
    image_id: str | None
    user: str | None
    installed: str
    disk: int
    subnets: tuple[str, ...]
    security_group: str | None
    ssm: bool
    bastion: str | None
    private: bool
    ssh_from: str | None
    profile: str | None
    together: bool
    placement: bool
    kms_key: str | None
    reservation: str | None
    limits: Limits
    watch_every: int
    besides: Besides

    def is_placed(self, offer: InstanceOffer) -> bool:
        """Return whether instances of that type are placed close together, by a group of ours.

        AWS places those of a Capacity Block by itself, and refuses a group.
        """
        is_possible = offer.type.clusters and not offer.is_block
        return is_possible and self.together and self.placement

    def login_source(self, subnet: Subnet) -> str | None:
        """Return who logs in at a port, as CIDR; ``None`` if that is nobody, or not known.

        Only the user knows the addresses of a bastion.
        """
        if self.ssm or (self.bastion and self.ssh_from is None):
            return None
        return caller_cidr(subnet, self.private, self.ssh_from)

    def disks_with(self, image: MachineImage) -> dict[str, int]:
        """Return the gigabytes of the disks of each, by name; an image may need more, or others."""
        return {image.device: max(self.disk, image.size), **image.others}

    def priced(self, offer: InstanceOffer, image: MachineImage) -> InstanceOffer:
        """Return an offer with the price of what it needs besides, to boot from an image."""
        disks = sum(self.disks_with(image).values())
        return replace(offer, besides=self.besides.price(disks))

    @property
    def name(self) -> str:
        """What the key pair and the groups of the cluster are called."""
        return name_of(self.identity)


def run_instances_arguments(
    request: LaunchRequest,
    offer: InstanceOffer,
    subnet: Subnet,
    image: MachineImage,
    keys: ClusterKeys,
    group: str,
) -> dict[str, Any]:
    """Return the arguments of ``RunInstances`` for one type in one zone.

    Parameters
    ----------
    group
        The id of the security group.
    """
    most = request.limits.most_of(offer, subnet.zone)
    token = uuid.uuid4().hex
    kinds = ("instance", "volume", "network-interface")
    arguments: dict[str, Any] = {
        "ImageId": image.id,
        "InstanceType": offer.type.name,
        "MinCount": request.nodes,
        "MaxCount": request.nodes,
        "KeyName": request.name,
        # The same request, sent twice after a lost answer, gets the same instances.
        "ClientToken": token,
        "UserData": user_data.user_data(
            keys.host_key,
            request.limits.lifetime(offer, subnet.zone),
            token,
            request.watch_every,
            bool(image.snapshot),
        ),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            _disk(request, name, gigabytes, storage.KIND if name == image.device else None)
            for name, gigabytes in request.disks_with(image).items()
        ],
        "NetworkInterfaces": _interfaces(request, offer, subnet, group),
        "Placement": {"AvailabilityZone": subnet.zone},
        "TagSpecifications": tag_specification(kinds, request.tags),
    }
    if request.is_placed(offer):
        arguments["Placement"]["GroupName"] = request.name
    if request.profile:
        arguments["IamInstanceProfile"] = {"Name": request.profile}
    if request.reservation:
        arguments["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": request.reservation}
        }
    if offer.is_block:
        arguments["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if offer.spot:
        arguments["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        }
        if most is not None:
            options: dict[str, Any] = arguments["InstanceMarketOptions"]["SpotOptions"]
            options["MaxPrice"] = f"{most:.6f}"
        arguments["TagSpecifications"] += tag_specification("spot-instances-request", request.tags)
    return arguments


def _disk(request: LaunchRequest, name: str, gigabytes: int, kind: str | None) -> dict[str, Any]:
    """Return a disk that ends with its instance, whatever its image says of it.

    Without that, further disks of an image stay when an instance ends itself: for ever, and in the
    clear.

    Parameters
    ----------
    kind
        The kind of disk, in place of that of the image.
    """
    return {
        "DeviceName": name,
        "Ebs": {
            "VolumeSize": gigabytes,
            **({"VolumeType": kind} if kind else {}),
            "Encrypted": True,
            "DeleteOnTermination": True,
            **({"KmsKeyId": request.kms_key} if request.kms_key else {}),
        },
    }


def _interfaces(
    request: LaunchRequest, offer: InstanceOffer, subnet: Subnet, group: str
) -> list[dict[str, Any]]:
    """Return the network interfaces: EFA between several nodes, on each network card if possible.

    AWS gives a public address to instances with one interface only.
    """
    efa = offer.type.efa if request.together else 0
    interfaces = []
    for card in range(max(1, efa if request.private else min(efa, 1))):
        interface: dict[str, Any] = {
            "NetworkCardIndex": card,
            "DeviceIndex": 0 if card == 0 else 1,
            "SubnetId": subnet.id,
            "Groups": [group],
            "DeleteOnTermination": True,
        }
        if efa:
            interface["InterfaceType"] = "efa"
        if card == 0:
            interface["AssociatePublicIpAddress"] = not request.private
        interfaces.append(interface)
    if len(interfaces) > 1:
        del interfaces[0]["AssociatePublicIpAddress"]
    return interfaces
