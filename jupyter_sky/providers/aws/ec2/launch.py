"""Renting the instances of a new cluster: all of them in one zone, or none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.providers.aws import rented, retries
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.ending import end_instances
from jupyter_sky.providers.aws.ec2.images import MachineImage, find_image
from jupyter_sky.providers.aws.ec2.key_pairs import ClusterKeys, keys_of, make_keys
from jupyter_sky.providers.aws.ec2.launch_request import LaunchRequest, run_instances_arguments
from jupyter_sky.providers.aws.ec2.user_data import FIRST_SIGN_WITHIN
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.market.instance_types import InstanceType
from jupyter_sky.providers.aws.market.selection import InstanceOffer
from jupyter_sky.providers.aws.network.security_group import check_group, make_security_group
from jupyter_sky.providers.aws.network.subnets import Subnet, find_subnets
from jupyter_sky.providers.aws.tags import tag_specification
from jupyter_sky.providers.progress import Rented

RUNNING_WITHIN = 300.0
"""Seconds for AWS to start instances."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0

_CLIENT_ERROR = "Client.InternalError"
_KEY_REFUSED = (
    "; it is mostly the key of its disks, `kms_key` or the account's own, which is disabled or "
    "which EC2 may not use for you: see the policy of the key"
)

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
class RentedInstance:
    """A running instance without an agent.

    Attributes
    ----------
    id, type, zone
        Its id, type and zone.
    address, user
        Its address, and its login user.
    price
        Dollars per hour, with its disks and its address; ``None`` if AWS does not tell.
    gpus
        Number of its GPUs.
    content
        The key of a snapshot of it.
    is_spot
        Whether AWS may take it away.
    """

    id: str
    type: str
    zone: str
    address: str
    user: str
    price: float | None
    gpus: int
    content: str
    is_spot: bool = False


class NoCapacity(SkyError):
    """AWS has too few instances of any type that fits, or the account's quota is reached."""


def rent(
    clients: Clients, request: LaunchRequest, report: Callable[[str], None]
) -> list[RentedInstance]:
    """Rent instances and return them once they are running.

    If this fails, the caller releases what was created.

    Parameters
    ----------
    report
        Called between steps; if it raises an error, the launch ends.

    Raises
    ------
    SkyError
        If AWS has too few instances of any type that fits, in any zone.
    """
    report("looking for free capacity")
    attempts = attempts_of(request, find_subnets(clients, request.subnets))
    first = attempts[0][1]
    source = request.login_source(first)
    rented.note_account(request.identity, clients)
    # They exist if something else was tried before.
    keys = keys_of(request.identity)
    if not keys.folder.is_dir():
        keys = make_keys(request.identity)
    report("making keys and a security group")
    _import_key(clients, request.name, keys, request.tags)
    is_given = request.ssh_from is not None
    if request.security_group is not None:
        group = check_group(clients, request.security_group, first.vpc, source)
    else:
        group = make_security_group(
            clients, request.name, first.vpc, source, request.tags, is_given
        )
        rented.note(request.identity, [group])
    if any(request.is_placed(offer) for offer, _ in attempts):
        _make_placement(clients, request.name, request.tags)
    return _try_all(clients, request, attempts, keys, group, report)


def attempts_of(
    request: LaunchRequest, subnets: Sequence[Subnet]
) -> list[tuple[InstanceOffer, Subnet]]:
    """Return the attempts in order: each type, in the cheapest zones or as the user chose.

    Raises
    ------
    SkyError
        If nothing that fits is offered in the zones of the subnets.
    """
    if request.subnets:
        found = [
            (offer, each)
            for offer in request.offers
            for each in subnets
            if each.zone in offer.prices
        ]
    else:
        by_zone = {each.zone: each for each in subnets}
        found = [
            (offer, by_zone[zone])
            for offer in request.offers
            for zone in offer.prices
            if zone in by_zone
        ]
    if not found:
        zones = ", ".join(sorted({zone for offer in request.offers for zone in offer.prices}))
        here = ", ".join(dict.fromkeys(each.zone for each in subnets))
        raise SkyError(
            f"what fits is offered in {zones}, and your subnets are in {here}: name "
            "a subnet there, or another --zone."
        )
    return found


def _try_all(
    clients: Clients,
    request: LaunchRequest,
    attempts: Sequence[tuple[InstanceOffer, Subnet]],
    keys: ClusterKeys,
    group: str,
    report: Callable[[str], None],
) -> list[RentedInstance]:
    """Try zones and types until one has all the instances."""
    refusals: list[str] = []
    used_up: set[str] = set()
    images: dict[str, MachineImage] = {}
    for offer, subnet in attempts:
        kind = offer.type
        quota = kind.quota(offer.spot)
        if quota in used_up:
            continue
        if kind.name not in images:
            images[kind.name] = image_for(clients, request, kind, report)
        offer = request.priced(offer, images[kind.name])
        report(f"asking for {request.nodes} × {kind.name} in {subnet.zone}")
        arguments = run_instances_arguments(request, offer, subnet, images[kind.name], keys, group)
        made: list[str] = []
        try:
            made = run_instances(clients, request.identity, arguments)
            return wait_until_running(
                clients, request, offer, subnet.zone, made, images[kind.name], report
            )
        except AWSError as error:
            if error.code not in (*QUOTAS, *TRY_ELSEWHERE):
                raise
            _, troubles = end_instances(clients.ec2, request.identity, made)
            if troubles:
                raise troubles[0] from None
            if made:
                report(Rented.of("trying again, as AWS has taken back what it gave", None, 0, 0, 0))
            if error.code in QUOTAS:
                used_up.add(quota)
                refusals.append(f"{kind.name}: {error.message} (the quota is `{quota}`)")
            else:
                refusals.append(f"{kind.name} in {subnet.zone}: {error.message}")
    raise NoCapacity(_no_capacity(request, refusals))


def run_instances(clients: Clients, identity: str, arguments: Mapping[str, Any]) -> list[str]:
    """Ask AWS for the instances of a cluster, and return their ids once they are recorded."""
    token = arguments["ClientToken"]
    rented.note_request(identity, token)
    try:
        with explain_errors():
            answer = clients.ec2.run_instances(**arguments)
    except BaseException as error:
        with contextlib.suppress(OSError):
            if isinstance(error, AWSError) and not retries.may_be_done(error.code):
                rented.note_answer(identity, token)
            else:
                rented.note_request(identity, token)  # at this time
        raise
    made = [each["InstanceId"] for each in answer["Instances"]]
    rented.note_answer(identity, token, made)
    return made


def image_for(
    clients: Clients, request: LaunchRequest, kind: InstanceType, report: Callable[[str], None]
) -> MachineImage:
    """Return the image to boot from: a matching snapshot, or a plain image."""
    found = snapshots.bootable(clients, snapshots.key(request.installed, kind))
    if found is None:
        return find_image(clients, kind, request.image_id, request.user)
    report(f"taking the snapshot {found.snapshot}")
    return found


def _no_capacity(request: LaunchRequest, refusals: Sequence[str]) -> str:
    lines = "".join(f"\n  {each}" for each in refusals)
    return (
        f"AWS has no capacity for {request.nodes} such instances now: try later or in another "
        f"--region, or ask for a higher quota at Service Quotas in the AWS console.{lines}"
    )


def wait_until_running(
    clients: Clients,
    request: LaunchRequest,
    offer: InstanceOffer,
    zone: str,
    ids: Sequence[str],
    image: MachineImage,
    report: Callable[[str], None],
) -> list[RentedInstance]:
    """Report what instances cost from now on, and wait until they run and have addresses.

    Raises
    ------
    SkyError
        If one ends, or they take too long.
    """
    kind, price = offer.type, offer.price_in(zone)
    total = None if price is None else len(ids) * price
    cost = "price unknown" if total is None else f"{format_dollars(total)} an hour"
    what = f"{len(ids)} × {kind.name} in {zone}, {cost}"
    report(Rented.of(what, total, len(ids), len(ids) * kind.gpus, FIRST_SIGN_WITHIN))
    found = wait_for_addresses(clients, ids, request.private, kind.name, report)
    rented.acknowledge(request.identity, ids)
    found.sort(key=lambda each: each["AmiLaunchIndex"])
    return [
        RentedInstance(
            each["InstanceId"],
            kind.name,
            zone,
            address_of(each, request.private),
            image.user,
            price,
            kind.gpus,
            snapshots.key(request.installed, kind),
            offer.spot,
        )
        for each in found
    ]


def address_of(said: Mapping[str, Any], private: bool) -> str:
    """Return the address of an instance from AWS's description; empty if it has none."""
    return str(said.get("PrivateIpAddress" if private else "PublicIpAddress") or "")


def wait_for_addresses(
    clients: Clients,
    ids: Sequence[str],
    private: bool,
    kind: str,
    report: Callable[[str], None],
    were_stopped: bool = False,
) -> list[dict[str, Any]]:
    """Wait until instances run and have addresses; return AWS's descriptions.

    Parameters
    ----------
    were_stopped
        Whether they were stopped until a moment ago: some of AWS's servers may still say so.

    Raises
    ------
    SkyError
        If one ends, or they take too long.
    """
    began, pause = time.monotonic(), _FIRST_PAUSE
    while True:
        report(f"starting {len(ids)} × {kind}")
        found = describe_instances(clients, ids)
        is_news_old = were_stopped and time.monotonic() - began < rented.KNOWN_WITHIN
        starting = ("pending", "running", "stopped") if is_news_old else ("pending", "running")
        for each in found:
            if each["State"]["Name"] not in starting:
                reason = each.get("StateReason", {})
                code = reason.get("Code", "").rpartition(".")[2]
                message = reason.get("Message", "AWS does not say why")
                why = message.rstrip(".")
                if message.startswith(_CLIENT_ERROR):
                    why += _KEY_REFUSED
                raise AWSError(f"an instance ended while it started: {why}.", code, message)
        if len(found) == len(ids) and all(
            each["State"]["Name"] == "running" and address_of(each, private) for each in found
        ):
            return found
        if time.monotonic() > began + RUNNING_WITHIN:
            raise SkyError(
                f"AWS has not started all of {len(ids)} instances within {RUNNING_WITHIN:.0f} s."
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def describe_instances(clients: Clients, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return AWS's descriptions of instances, as far as it knows them."""
    try:
        return _described(clients, InstanceIds=list(ids))
    except AWSError as error:
        # New instances are not known everywhere at once, and ended ones are forgotten.
        if error.code != "InvalidInstanceID.NotFound":
            raise
    if len(ids) == 1:
        return []
    # It describes none of several of which it does not know one, unless it is asked like this.
    return _described(clients, Filters=[{"Name": "instance-id", "Values": list(ids)}])


def _described(clients: Clients, **wanted: Any) -> list[dict[str, Any]]:
    with explain_errors():
        pages = clients.ec2.get_paginator("describe_instances").paginate(**wanted)
        return [*pages.search("Reservations[].Instances[]")]


def describe_instance(clients: Clients, name: str) -> dict[str, Any]:
    """Return AWS's description of an instance of a cluster that is up.

    Raises
    ------
    SkyError
        If AWS no longer knows it.
    """
    for said in describe_instances(clients, [name]):
        return said
    raise SkyError(
        f"AWS no longer knows the instance {name}: end the cluster with `%sky down`, and "
        "start a new one."
    )


def _import_key(clients: Clients, name: str, keys: ClusterKeys, tags: Mapping[str, str]) -> None:
    with explain_errors("InvalidKeyPair.Duplicate"):
        clients.ec2.import_key_pair(
            KeyName=name,
            PublicKeyMaterial=keys.public.encode(),
            TagSpecifications=tag_specification("key-pair", tags),
        )


def _make_placement(clients: Clients, name: str, tags: Mapping[str, str]) -> None:
    with explain_errors("InvalidPlacementGroup.Duplicate"):
        clients.ec2.create_placement_group(
            GroupName=name,
            Strategy="cluster",
            TagSpecifications=tag_specification("placement-group", tags),
        )
