"""Renting the instances of a cluster: all of them in one zone, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import AWSError, Clients, explained
from jupyter_sky.providers.aws.ec2 import network, snapshots
from jupyter_sky.providers.aws.ec2.images import Image, image
from jupyter_sky.providers.aws.ec2.key_pairs import Keys, make_keys
from jupyter_sky.providers.aws.ec2.launch_request import Order, request
from jupyter_sky.providers.aws.ec2.network import Subnet
from jupyter_sky.providers.aws.ec2.tags import specification
from jupyter_sky.providers.aws.market.instance_types import InstanceType
from jupyter_sky.providers.aws.market.selection import Offer

RUNNING_WITHIN = 300.0
"""Seconds for AWS to start instances."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0

TRY_ELSEWHERE = (
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientFreeAddressesInSubnet",
    "SpotMaxPriceTooLow",
    "Unsupported",
    "UnfulfillableCapacity",
)
"""Another zone, or another type, may have what this one lacks."""

QUOTAS = (
    "VcpuLimitExceeded",
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "SpotInstanceCountExceeded",
)
"""The account may not have more."""


@dataclass(frozen=True)
class Rented:
    """An instance that runs.

    Attributes
    ----------
    address, user
        Where it is reached, and whom it lets in.
    price
        Dollars an hour.
    gpus
        How many it has.
    content
        The key of a snapshot of it.
    """

    id: str
    type: str
    zone: str
    address: str
    user: str
    price: float | None
    gpus: int
    content: str


def rent(clients: Clients, order: Order, say: Callable[[str], None]) -> list[Rented]:
    """Rent instances and return them when they run.

    What was made stays where this fails: whoever calls gives it back.

    Parameters
    ----------
    say
        Called between the steps; raising from it ends the matter.
    """
    say("looking for a place")
    places = network.subnets(clients, order.subnet)
    attempts = list(_attempts(order, places))
    if not attempts:
        zones = ", ".join(sorted({zone for offer in order.offers for zone in offer.prices}))
        raise SkyError(
            f"what fits is offered in {zones}, and your subnets are in {', '.join(places)}: name a "
            "subnet there, or another --zone."
        )
    first = attempts[0][1]
    source = network.caller(first, order.private, order.ssh_from)
    keys = make_keys(order.identity)
    say("making keys and a security group")
    _import_key(clients, order.name, keys, order.marks)
    group = network.make_group(clients, order.name, first.vpc, source, order.marks)
    if any(order.is_placed(offer) for offer, _ in attempts):
        _make_placement(clients, order.name, order.marks)
    return _try_all(clients, order, attempts, keys, group, say)


def _attempts(order: Order, places: Mapping[str, Subnet]) -> Iterator[tuple[Offer, Subnet]]:
    for offer in order.offers:
        for zone in offer.prices:
            if zone in places:
                yield offer, places[zone]


def _try_all(
    clients: Clients,
    order: Order,
    attempts: Sequence[tuple[Offer, Subnet]],
    keys: Keys,
    group: str,
    say: Callable[[str], None],
) -> list[Rented]:
    """Go from zone to zone, and from type to type, until one has all the instances."""
    troubles: list[str] = []
    used_up: set[str] = set()
    images: dict[str, Image] = {}
    for offer, subnet in attempts:
        kind = offer.type
        quota = kind.quota(offer.spot)
        if quota in used_up:
            continue
        if kind.name not in images:
            images[kind.name] = _system(clients, order, kind, say)
        say(f"asking for {order.nodes} × {kind.name} in {subnet.zone}")
        asked = request(order, offer, subnet, images[kind.name], keys, group)
        made: list[str] = []
        try:
            with explained():
                answer = clients.ec2.run_instances(**asked)
            made = [each["InstanceId"] for each in answer["Instances"]]
            return running(clients, order, offer, made, images[kind.name], say)
        except AWSError as error:
            if error.code not in (*QUOTAS, *TRY_ELSEWHERE):
                raise
            if made:
                with explained():
                    clients.ec2.terminate_instances(InstanceIds=made)
            if error.code in QUOTAS:
                used_up.add(quota)
                troubles.append(f"{kind.name}: {error.said} (the quota is `{quota}`)")
            else:
                troubles.append(f"{kind.name} in {subnet.zone}: {error.said}")
    raise SkyError(_nothing(order, troubles))


def _system(
    clients: Clients, order: Order, kind: InstanceType, say: Callable[[str], None]
) -> Image:
    """Return what to boot from: a snapshot of a node that was prepared in the same way, or not."""
    found = snapshots.bootable(clients, snapshots.key(order.installed, kind))
    if found is None:
        return image(clients, kind, order.image_id, order.user)
    say(f"taking the snapshot {found.snapshot}")
    return found


def _nothing(order: Order, troubles: Sequence[str]) -> str:
    lines = "".join(f"\n  {each}" for each in troubles)
    return (
        f"AWS has no {order.nodes} instances for this now: try later or in another --region, or "
        f"ask for a higher quota at Service Quotas in the AWS console.{lines}"
    )


def running(
    clients: Clients,
    order: Order,
    offer: Offer,
    ids: Sequence[str],
    system: Image,
    say: Callable[[str], None],
) -> list[Rented]:
    """Wait until instances run and have addresses."""
    deadline = time.monotonic() + RUNNING_WITHIN
    pause = _FIRST_PAUSE
    while True:
        say(f"starting {len(ids)} × {offer.type.name}")
        found = described(clients, ids)
        for each in found:
            if each["State"]["Name"] not in ("pending", "running"):
                reason = each.get("StateReason", {})
                code = reason.get("Code", "").rpartition(".")[2]
                said = reason.get("Message", "AWS does not say why")
                raise AWSError(f"an instance ended while it started: {said}.", code, said)
        where = "PrivateIpAddress" if order.private else "PublicIpAddress"
        if len(found) == len(ids) and all(
            each["State"]["Name"] == "running" and each.get(where) for each in found
        ):
            break
        if time.monotonic() > deadline:
            raise SkyError(
                f"AWS has not started all of {len(ids)} instances within {RUNNING_WITHIN:.0f} s."
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    found.sort(key=lambda each: each["AmiLaunchIndex"])
    zone = found[0]["Placement"]["AvailabilityZone"]
    price = offer.prices.get(zone)
    return [
        Rented(
            each["InstanceId"],
            offer.type.name,
            zone,
            each[where],
            system.user,
            price,
            offer.type.gpus,
            snapshots.key(order.installed, offer.type),
        )
        for each in found
    ]


def described(clients: Clients, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return what AWS says of instances, as far as it knows them."""
    try:
        with explained():
            pages = clients.ec2.get_paginator("describe_instances").paginate(InstanceIds=list(ids))
            return [
                each
                for page in pages
                for reservation in page["Reservations"]
                for each in reservation["Instances"]
            ]
    except AWSError as error:
        # What was just made is not known everywhere at once.
        if error.code == "InvalidInstanceID.NotFound":
            return []
        raise


def _import_key(clients: Clients, name: str, keys: Keys, marks: Mapping[str, str]) -> None:
    try:
        with explained():
            clients.ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=keys.public.encode(),
                TagSpecifications=specification("key-pair", marks),
            )
    except AWSError as error:
        if error.code != "InvalidKeyPair.Duplicate":
            raise


def _make_placement(clients: Clients, name: str, marks: Mapping[str, str]) -> None:
    try:
        with explained():
            clients.ec2.create_placement_group(
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=specification("placement-group", marks),
            )
    except AWSError as error:
        if error.code != "InvalidPlacementGroup.Duplicate":
            raise
