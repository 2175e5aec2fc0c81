"""What is rented for settings and a specification: the types and zones to try, and the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.launch_request import LaunchRequest
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.besides import Besides, besides
from jupyter_sky.providers.aws.market.limits import (
    MAY_RISE,
    Limits,
    is_as_cheap,
    where_price_is_known,
)
from jupyter_sky.providers.aws.market.offers import find_offers
from jupyter_sky.providers.aws.market.reservations import find_reservation, reserved_offer
from jupyter_sky.providers.aws.market.selection import InstanceOffer, InstanceRequirements
from jupyter_sky.providers.aws.network.subnets import find_subnets
from jupyter_sky.providers.aws.settings import Settings
from jupyter_sky.providers.aws.tags import cluster_tags
from jupyter_sky.providers.spec import ClusterSpec


def requirements(there: Clients, settings: Settings, spec: ClusterSpec) -> InstanceRequirements:
    """Return what instances have to be."""
    return InstanceRequirements(
        nodes=spec.nodes,
        accelerator=spec.wanted_gpus,
        cpus=None if spec.cpus is None else str(spec.cpus),
        memory=None if spec.memory is None else str(spec.memory),
        instance_type=settings.instance_type,
        zone=settings.zone,
        spot=settings.spot,
        max_price=settings.max_price,
        besides=costs_besides(there, settings).price(settings.disk),
    )


def costs_besides(there: Clients, settings: Settings) -> Besides:
    """Return what is paid besides instances."""
    return besides(there, settings.addresses == "public")


def fitting_offers(
    there: Clients, settings: Settings, spec: ClusterSpec, present: int = 0
) -> list[InstanceOffer]:
    """Return what fits, cheapest first; of a reservation, what is reserved.

    Parameters
    ----------
    present
        Number of nodes that are up already.
    """
    wanted = requirements(there, settings, spec)
    if settings.capacity_reservation is None:
        return find_offers(there, wanted)
    reservation = find_reservation(there, settings.capacity_reservation)
    return [reserved_offer(there, reservation, wanted, present)]


def choose(there: Clients, settings: Settings, spec: ClusterSpec) -> list[InstanceOffer]:
    """Return what may be taken without asking again, the best first.

    Raises
    ------
    UsageError
        When nothing fits, or a limit cannot hold.
    """
    fitting = fitting_offers(there, settings, spec)
    acceptable = [each for each in fitting if is_as_cheap(each, fitting[0])]
    if settings.max_cost is not None:
        acceptable = where_price_is_known(acceptable, prices.is_denied(there))
    if spec.former_price is None or settings.max_price is not None:
        return acceptable
    # What is cheap in a zone that has none of the user's subnets cannot be taken.
    zones = {each.zone for each in find_subnets(there, settings.subnets)}
    in_reach = [_where(each, lambda zone, price: zone in zones) for each in acceptable]
    acceptable = [each for each in in_reach if each.prices] or acceptable
    # Nobody may be there to ask, while the cheapest costs what was agreed to.
    agreed = ask_above(settings, spec)
    within = [_where_within(agreed / spec.nodes, each) for each in acceptable]
    return [each for each in within if each.prices] or acceptable


def _where_within(most: float, offer: InstanceOffer) -> InstanceOffer:
    """Return an offer in the zones where one costs no more, with all that is paid besides it."""
    if offer.is_block:  # whose price is paid already
        return offer
    for_it = most - offer.besides - offer.type.surplus
    return _where(offer, lambda zone, price: price is not None and price <= for_it)


def _where(offer: InstanceOffer, is_possible: Callable[[str, float | None], bool]) -> InstanceOffer:
    """Return an offer in those of its zones that are possible at their price."""
    prices = {zone: price for zone, price in offer.prices.items() if is_possible(zone, price)}
    return replace(offer, prices=prices)


def ask_above(settings: Settings, spec: ClusterSpec) -> float:
    """Return the dollars an hour up to which nobody is asked, or has been for a lost cluster."""
    return max(settings.ask_above, MAY_RISE * (spec.former_price or 0.0))


def limits(settings: Settings, spec: ClusterSpec) -> Limits:
    """Return what the nodes of a cluster may cost."""
    return Limits(spec.nodes, settings.max_price, settings.max_cost, settings.ask_above)


def request(
    there: Clients,
    settings: Settings,
    spec: ClusterSpec,
    identity: str,
    offers: Sequence[InstanceOffer],
    image: str | None,
) -> LaunchRequest:
    """Return the request for all instances of a new cluster."""
    tags = cluster_tags(identity, spec.name, there.user, settings.kms_key)
    return LaunchRequest(
        identity=identity,
        nodes=spec.nodes,
        tags={**(settings.tags or {}), **tags},
        offers=offers,
        image_id=image,
        user=settings.user,
        installed=snapshots.content(spec.image, settings.python, settings.image_id),
        disk=settings.disk,
        subnets=settings.subnets,
        security_group=settings.security_group,
        ssm=settings.ssm,
        bastion=settings.bastion,
        private=settings.addresses == "private",
        ssh_from=settings.ssh_from,
        profile=settings.instance_profile,
        together=spec.nodes > 1,
        placement=settings.placement,
        kms_key=settings.kms_key,
        reservation=settings.capacity_reservation,
        limits=limits(settings, spec),
        watch_every=settings.watch_every,
        besides=costs_besides(there, settings),
    )


def on_market(settings: Settings, spot: bool) -> Settings:
    """Return the same settings for the spot market, or on demand."""
    return replace(settings, spot=spot)
