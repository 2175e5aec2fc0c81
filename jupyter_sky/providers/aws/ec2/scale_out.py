"""Renting more instances for a cluster that is up: like those that it has, in the same zone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import launch
from jupyter_sky.providers.aws.ec2.images import find_image
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.aws.ec2.launch_request import LaunchRequest, run_instances_arguments
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import InstanceType, catalog
from jupyter_sky.providers.aws.market.selection import InstanceOffer
from jupyter_sky.providers.aws.network.security_group import admit, check_group, find_groups
from jupyter_sky.providers.aws.network.subnets import Subnet
from jupyter_sky.providers.aws.tags import ID, KMS_KEY, is_own, tags_of


def offer(
    clients: Clients, like: Instance, said: Mapping[str, Any], besides: float
) -> InstanceOffer:
    """Return the type of an instance, with what another one costs in its zone.

    Parameters
    ----------
    said
        AWS's description of the instance.
    besides
        Dollars an hour of its disks and its address.
    """
    kind = catalog(clients).types[like.type]
    is_block = said.get("InstanceLifecycle") == "capacity-block"
    prices = {like.zone: 0.0 if is_block else _price(clients, kind, like)}
    return InstanceOffer(kind, like.spot, prices, is_block=is_block, besides=besides)


def disks(clients: Clients, said: Mapping[str, Any], otherwise: int) -> dict[str, int]:
    """Return the gigabytes of the disks that an instance was started with, by name.

    Parameters
    ----------
    said
        AWS's description of the instance.
    otherwise
        Those of the disk that it boots from, where AWS does not tell.
    """
    attached = [{"Name": "attachment.instance-id", "Values": [said["InstanceId"]]}]
    found = {said["RootDeviceName"]: otherwise}
    # What the user has attached stays when the instance ends, and is at no other one.
    names = {
        each["Ebs"]["VolumeId"]: each["DeviceName"]
        for each in said["BlockDeviceMappings"]
        if each["Ebs"]["DeleteOnTermination"]
    }
    with contextlib.suppress(AWSError), explain_errors():
        for each in clients.ec2.describe_volumes(Filters=attached)["Volumes"]:
            if name := names.get(each["VolumeId"]):
                found[name] = int(each["Size"])
    return found


def rent(
    clients: Clients,
    request: LaunchRequest,
    like: Instance,
    said: Mapping[str, Any],
    report: Callable[[str], None],
) -> list[RentedInstance]:
    """Rent instances like one of the cluster, all or none, and return them when they run.

    What was made stays when this fails: the caller terminates it by the tag of the request.

    Parameters
    ----------
    request
        How many, of one type in one zone.
    like, said
        An instance of the cluster, and AWS's description of it.
    report
        Called between the steps; raising from it ends the matter.
    """
    [wanted] = request.offers
    subnet = Subnet(said["SubnetId"], said["VpcId"], like.zone, "")
    if not request.ssm:
        with explain_errors():
            [found] = clients.ec2.describe_subnets(SubnetIds=[subnet.id])["Subnets"]
        subnet = replace(subnet, cidr=found["CidrBlock"])
    # This computer may have another address by now.
    group = _admitting(clients, request, said, request.login_source(subnet))
    is_placed = _is_placed(clients, request)
    request = replace(
        request,
        together=is_placed or _has_efa(said),
        placement=is_placed,
        **_as_before(said, request),
    )
    image = find_image(clients, wanted.type, said["ImageId"], request.user)
    wanted = request.priced(wanted, image)
    report(f"asking for {request.nodes} more × {wanted.type.name} in {like.zone}")
    arguments = run_instances_arguments(
        request, wanted, subnet, image, keys_of(request.identity), group
    )
    try:
        made = launch.run_instances(clients, request.identity, arguments)
    except AWSError as error:
        if error.code not in (*launch.QUOTAS, *launch.TRY_ELSEWHERE):
            raise
        quota = f" (the quota is `{wanted.type.quota(wanted.spot)}`)"
        raise SkyError(
            f"AWS has no capacity for {request.nodes} more × {wanted.type.name} in {like.zone}, "
            f"where the "
            f"others are: {error.message.rstrip('.')}{quota * (error.code in launch.QUOTAS)}."
        ) from None
    return launch.wait_until_running(clients, request, wanted, like.zone, made, image, report)


def _as_before(said: Mapping[str, Any], request: LaunchRequest) -> dict[str, Any]:
    """Return what was chosen for the first instances, which another kernel may not know."""
    before = tags_of(said)
    own = {key: value for key, value in before.items() if is_own(key)}
    reservation = said.get("CapacityReservationSpecification", {})
    target = reservation.get("CapacityReservationTarget", {}).get("CapacityReservationId")
    profile = said.get("IamInstanceProfile", {}).get("Arn", "").rpartition("/")[2]
    return {
        "tags": {**own, **request.tags},
        "kms_key": before.get(KMS_KEY) or request.kms_key,
        "reservation": target or request.reservation,
        "profile": profile or request.profile,
    }


def _admitting(
    clients: Clients, request: LaunchRequest, said: Mapping[str, Any], source: str | None
) -> str:
    """Return the security group of the cluster, which lets in who asks."""
    groups = find_groups(clients, request.identity)
    given = [each["GroupId"] for each in said["SecurityGroups"]]
    if not groups and given and said["SecurityGroups"][0]["GroupName"] != request.name:
        return check_group(clients, given[0], said["VpcId"], source)
    if not groups:
        raise SkyError(
            f"the security group {request.name} of the cluster is gone: end it with `%sky down`, "
            "and start a new one."
        )
    if source is not None:
        admit(clients, groups[0], source, request.ssh_from is not None)
    return str(groups[0]["GroupId"])


def _price(clients: Clients, kind: InstanceType, like: Instance) -> float | None:
    if like.spot:
        return prices.spot(clients, [kind.name]).get((kind.name, like.zone))
    return prices.on_demand(clients)[0].get(kind.name)


def _has_efa(said: Mapping[str, Any]) -> bool:
    """Return whether an instance has an interface that the first nodes have among each other."""
    return any(each.get("InterfaceType") == "efa" for each in said.get("NetworkInterfaces", ()))


def _is_placed(clients: Clients, request: LaunchRequest) -> bool:
    """Return whether instances of the cluster are placed close together."""
    ours = [{"Name": f"tag:{ID}", "Values": [request.identity]}]
    with explain_errors():
        return bool(clients.ec2.describe_placement_groups(Filters=ours)["PlacementGroups"])
