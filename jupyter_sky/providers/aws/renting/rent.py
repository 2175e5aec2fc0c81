"""Renting the instances of a new cluster, and more for one that is up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jupyter_sky.providers.aws import local_store
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import launch, scale_out, snapshots
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.aws.errors import NO_SPOT_ROLE, AWSError
from jupyter_sky.providers.aws.market.besides import besides
from jupyter_sky.providers.aws.market.confirmation import ask, check_max_price, confirm_price
from jupyter_sky.providers.aws.market.limits import MAY_RISE
from jupyter_sky.providers.aws.market.rounding import ROUNDING
from jupyter_sky.providers.aws.market.selection import InstanceOffer, NotOffered
from jupyter_sky.providers.aws.renting import choice
from jupyter_sky.providers.aws.renting.budget import Budget
from jupyter_sky.providers.aws.settings import Settings
from jupyter_sky.providers.aws.tags import REQUEST
from jupyter_sky.providers.base import Node
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.spec import ClusterSpec


def rent(
    there: Clients,
    settings: Settings,
    spec: ClusterSpec,
    identity: str,
    report: Callable[[str], None],
) -> list[RentedInstance]:
    """Rent all instances of a new cluster, when the user agrees to what they cost.

    Parameters
    ----------
    report
        Called between the steps; raising from it ends the launch.
    """
    image = snapshots.resolve(there, settings.image_id, ask)

    def rent_of(chosen: Settings) -> list[RentedInstance]:
        return _rent(there, chosen, spec, identity, image, report)

    if not settings.spot_or_on_demand:
        return rent_of(settings)
    try:
        return rent_of(choice.on_market(settings, spot=True))
    except (launch.NoCapacity, NotOffered, AWSError) as error:
        if isinstance(error, AWSError) and error.code != NO_SPOT_ROLE:
            raise
        # The price is another one: it is said again, and asked for where it is high.
        report(f"there is no spot ({str(error).splitlines()[0].rstrip('.')}): on demand")
        return rent_of(choice.on_market(settings, spot=False))


def _rent(
    there: Clients,
    settings: Settings,
    spec: ClusterSpec,
    identity: str,
    image: str | None,
    report: Callable[[str], None],
) -> list[RentedInstance]:
    report("choosing machines")
    acceptable = choice.choose(there, settings, spec)
    idle = spec.idle_timeout
    confirm_price(
        spec.nodes,
        acceptable,
        settings.max_price,
        choice.ask_above(settings, spec),
        report,
        there.account,
        idle,
    )
    local_store.add_location(there.location)
    request = choice.request(there, settings, spec, identity, acceptable, image)
    return launch.rent(there, request, report)


def rent_more(
    there: Clients,
    settings: Settings,
    running: RunningCluster,
    like: Instance,
    budget: Budget,
    number: str,
    report: Callable[[str], None],
) -> list[RentedInstance]:
    """Rent the instances that a cluster lacks.

    Parameters
    ----------
    like
        One that it has.
    budget
        What is left of ``--max-cost``.
    number
        What finds them if the answer is lost.
    """
    count, spec = len(running.new_numbers), running.spec
    report("looking up the price of another instance")
    said = launch.describe_instance(there, like.id)
    private = like.is_private(said)
    disks = scale_out.disks(there, said, settings.disk)
    settings = replace(settings, disk=disks[said["RootDeviceName"]])
    paid = besides(there, not private)
    offer = scale_out.offer(there, like, said, paid.price(sum(disks.values())))
    if settings.max_price is not None:
        check_max_price(settings.max_price, running, offer)
    if not _costs_as_before(offer, running.lost):
        confirm_price(
            spec.nodes, [offer], settings.max_price, settings.ask_above, report, there.account
        )
    seconds = budget.share_with(count, offer.price)
    request = choice.request(there, settings, spec, like.cluster, [offer], None)
    request = replace(
        request,
        nodes=count,
        limits=replace(request.limits, seconds=seconds),
        user=like.user,
        private=private,
        besides=paid,
        ssm=like.ssm,
        bastion=like.bastion,
        tags={**request.tags, REQUEST: number},
    )
    return scale_out.rent(there, request, like, said, report)


def _costs_as_before(offer: InstanceOffer, lost: Sequence[Node]) -> bool:
    """Return whether what takes the place of lost nodes costs what these may have cost.

    It is spot that is lost when its price rises, by as much as it likes.
    """
    before = [node.price for node in lost if node.price is not None]
    if not lost or offer.price is None or len(before) < len(lost):
        return bool(lost) and not offer.spot
    return offer.price <= MAY_RISE * min(before) + ROUNDING
