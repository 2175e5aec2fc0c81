"""More machines for a cluster that is up: like those that it has, in the same place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import AWSError, Clients, explained
from jupyter_sky.providers.aws.ec2 import launch, network
from jupyter_sky.providers.aws.ec2.images import image
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.launch import Rented
from jupyter_sky.providers.aws.ec2.launch_request import Order, request
from jupyter_sky.providers.aws.ec2.network import Subnet
from jupyter_sky.providers.aws.ec2.tags import ID
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import InstanceType, catalog
from jupyter_sky.providers.aws.market.selection import Offer


def offer(clients: Clients, like: Instance) -> Offer:
    """Return the type of a machine, with what another one costs in its zone."""
    kind = catalog(clients).types[like.type]
    return Offer(kind, like.spot, {like.zone: _price(clients, kind, like)})


def rent(
    clients: Clients, order: Order, like: Instance, say: Callable[[str], None]
) -> list[Rented]:
    """Rent machines like one of the cluster, all or none, and return them when they run.

    Parameters
    ----------
    order
        How many, of one type in one zone.
    say
        Called between the steps; raising from it ends the matter.
    """
    [wanted] = order.offers
    [said] = launch.described(clients, [like.id])
    subnet = Subnet(said["SubnetId"], said["VpcId"], like.zone, "")
    if not order.private or order.ssh_from is None:
        with explained():
            [found] = clients.ec2.describe_subnets(SubnetIds=[subnet.id])["Subnets"]
        subnet = replace(subnet, cidr=found["CidrBlock"])
    # This computer may have another address by now.
    source = network.caller(subnet, order.private, order.ssh_from)
    group = network.make_group(clients, order.name, subnet.vpc, source, order.marks)
    order = replace(order, together=_is_placed(clients, order))
    system = image(clients, wanted.type, said["ImageId"], order.user)
    say(f"asking for {order.nodes} more × {wanted.type.name} in {like.zone}")
    asked = request(order, wanted, subnet, system, keys_of(order.identity), group)
    try:
        with explained():
            answer = clients.ec2.run_instances(**asked)
    except AWSError as error:
        if error.code not in (*launch.QUOTAS, *launch.TRY_ELSEWHERE):
            raise
        quota = f" (the quota is `{wanted.type.quota(wanted.spot)}`)"
        raise SkyError(
            f"AWS has no {order.nodes} more × {wanted.type.name} in {like.zone}, where the others "
            f"are: {error.said.rstrip('.')}{quota * (error.code in launch.QUOTAS)}."
        ) from None
    made = [each["InstanceId"] for each in answer["Instances"]]
    try:
        return launch.running(clients, order, wanted, made, system, say)
    except BaseException:
        with explained():
            clients.ec2.terminate_instances(InstanceIds=made)
        raise


def _price(clients: Clients, kind: InstanceType, like: Instance) -> float | None:
    if like.spot:
        return prices.spot(clients, [kind.name]).get((kind.name, like.zone))
    return prices.on_demand(clients)[0].get(kind.name)


def _is_placed(clients: Clients, order: Order) -> bool:
    """Return whether machines of the cluster are placed close together."""
    ours = [{"Name": f"tag:{ID}", "Values": [order.identity]}]
    with explained():
        return bool(clients.ec2.describe_placement_groups(Filters=ours)["PlacementGroups"])
