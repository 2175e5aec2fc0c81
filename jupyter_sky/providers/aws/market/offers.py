"""Offers that fit what was asked for, and a table of them for ``%sky offers``."""

from __future__ import annotations

from jupyter_sky.formatting import aligned, format_dollars
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import catalog
from jupyter_sky.providers.aws.market.selection import (
    InstanceOffer,
    InstanceRequirements,
    fitting_types,
    select,
)

_SHOWN = 12


def find_offers(clients: Clients, required: InstanceRequirements) -> list[InstanceOffer]:
    """Return what fits in a region, cheapest first."""
    known = catalog(clients)
    usual, _ = ({}, 0.0) if required.spot else prices.on_demand(clients)
    spot = {}
    if required.spot:
        names = [each.name for each in fitting_types(required, known) if each.has_spot]
        spot = prices.spot(clients, names)
    return select(required, known, usual, spot)


def offers_table(clients: Clients, required: InstanceRequirements) -> str:
    """Return what fits as a table, with on-demand and spot prices and how old these are."""
    known = catalog(clients)
    usual, age = prices.on_demand(clients)
    fitting = [each.name for each in fitting_types(required, known)]
    spot = prices.spot(clients, fitting)
    offers = select(required, known, usual, spot)
    rows = [_HEAD, *(_row(offer, required.nodes, usual, spot) for offer in offers[:_SHOWN])]
    lines = list(aligned(rows))
    if len(offers) > _SHOWN:
        lines.append(f"and {len(offers) - _SHOWN} more that cost more")
    nodes = f"{required.nodes} nodes" if required.nodes > 1 else "one node"
    lines.append(
        f"{clients.region}, dollars an hour for {nodes} without disks; on-demand prices are "
        f"{age / 3600:.0f} h old, spot prices are current"
    )
    return "\n".join(lines)


_HEAD = ("type", "GPUs", "CPUs", "memory", "on demand", "spot", "zones")


def _row(
    offer: InstanceOffer,
    nodes: int,
    usual: dict[str, float],
    spot: dict[tuple[str, str], float],
) -> tuple[str, ...]:
    kind = offer.type
    spots = [price for zone in kind.zones if (price := spot.get((kind.name, zone))) is not None]
    return (
        kind.name,
        f"{kind.gpus} × {kind.gpu}" if kind.gpu else "",
        f"{kind.cpus}",
        f"{kind.memory:.0f} GB",
        format_dollars(nodes * usual[kind.name]) if kind.name in usual else "unknown",
        format_dollars(nodes * min(spots)) if spots else "",
        ", ".join(zone.removeprefix(kind.zones[0][:-1]) for zone in kind.zones),
    )
