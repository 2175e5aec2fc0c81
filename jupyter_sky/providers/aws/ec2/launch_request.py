"""What is asked of AWS for a cluster: one `RunInstances` for all of its nodes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.providers.aws.ec2 import user_data
from jupyter_sky.providers.aws.ec2.images import Image
from jupyter_sky.providers.aws.ec2.key_pairs import Keys
from jupyter_sky.providers.aws.ec2.network import Subnet
from jupyter_sky.providers.aws.ec2.tags import specification
from jupyter_sky.providers.aws.market.selection import Offer


@dataclass(frozen=True)
class Order:
    """What is rented.

    Attributes
    ----------
    identity, marks
        The cluster's id, and the tags of all that is made for it.
    offers
        Types to try, the best first.
    image_id, user
        The person's own image, and whom it lets in.
    installed
        What is installed on nodes: a snapshot that has it is booted from.
    disk
        Gigabytes.
    subnet
        The one to be in, in place of the default ones.
    private
        Whether instances have private addresses only.
    ssh_from
        Who may log in, as CIDR, in place of this computer alone.
    profile
        The name of the instance profile.
    together
        Whether the cluster is one of several nodes, which are placed close together.
    lifetime
        Seconds after which instances power off by themselves, as a function of the price of all
        of them an hour.
    """

    identity: str
    nodes: int
    marks: Mapping[str, str]
    offers: Sequence[Offer]
    image_id: str | None
    user: str | None
    installed: str
    disk: int
    subnet: str | None
    private: bool
    ssh_from: str | None
    profile: str | None
    together: bool
    lifetime: Callable[[float | None], float | None]
    watch_every: int

    def is_placed(self, offer: Offer) -> bool:
        """Return whether machines of that type are placed close together."""
        return offer.type.clusters and self.together

    @property
    def name(self) -> str:
        """What the key pair and the groups of the cluster are called."""
        return f"jupyter-sky-{self.identity}"


def request(
    order: Order, offer: Offer, subnet: Subnet, system: Image, keys: Keys, group: str
) -> dict[str, Any]:
    """Return the parameters of `RunInstances`."""
    kind = offer.type
    price = offer.prices[subnet.zone]
    lifetime = order.lifetime(None if price is None else order.nodes * price)
    kinds = ("instance", "volume", "network-interface")
    asked: dict[str, Any] = {
        "ImageId": system.id,
        "InstanceType": kind.name,
        "MinCount": order.nodes,
        "MaxCount": order.nodes,
        "KeyName": order.name,
        # The same question, asked twice after a lost answer, gets the same instances.
        "ClientToken": uuid.uuid4().hex,
        "UserData": user_data.user_data(
            keys.host_key,
            lifetime,
            user_data.FIRST_AGENT_WITHIN,
            order.watch_every,
            bool(system.snapshot),
        ),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": system.device,
                "Ebs": {
                    "VolumeSize": max(order.disk, system.size),
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "NetworkInterfaces": _interfaces(order, offer, subnet, group),
        "Placement": {"AvailabilityZone": subnet.zone},
        "TagSpecifications": specification(kinds, order.marks),
    }
    if order.is_placed(offer):
        asked["Placement"]["GroupName"] = order.name
    if order.profile:
        asked["IamInstanceProfile"] = {"Name": order.profile}
    if offer.spot:
        asked["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        }
        asked["TagSpecifications"] += specification("spot-instances-request", order.marks)
    return asked


def _interfaces(order: Order, offer: Offer, subnet: Subnet, group: str) -> list[dict[str, Any]]:
    """Return the network interfaces: EFA between several nodes, on each network card if possible.

    AWS gives a public address to machines with one interface only.
    """
    efa = offer.type.efa if order.together else 0
    interfaces = []
    for card in range(max(1, efa if order.private else min(efa, 1))):
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
            interface["AssociatePublicIpAddress"] = not order.private
        interfaces.append(interface)
    if len(interfaces) > 1:
        del interfaces[0]["AssociatePublicIpAddress"]
    return interfaces
