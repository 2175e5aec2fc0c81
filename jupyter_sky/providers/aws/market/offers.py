"""What can be rented and what it costs: the search that launching and `%sky offers` share."""

from __future__ import annotations

from jupyter_sky.formatting import aligned, format_dollars
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import catalog
from jupyter_sky.providers.aws.market.selection import Offer, Wish, choose, fitting_types

_SHOWN = 12


def find(clients: Clients, wish: Wish) -> list[Offer]:
    """Return what fits a wish in a region, cheapest first."""
    known = catalog(clients)
    usual, _ = ({}, 0.0) if wish.spot else prices.on_demand(clients)
    spot = {}
    if wish.spot:
        names = [each.name for each in fitting_types(wish, known) if each.has_spot]
        spot = prices.spot(clients, names)
    return choose(wish, known, usual, spot)


def table(clients: Clients, wish: Wish) -> str:
    """Return what fits as a table, with on-demand and spot prices and how old these are."""
    known = catalog(clients)
    usual, age = prices.on_demand(clients)
    fitting = [each.name for each in fitting_types(wish, known)]
    spot = prices.spot(clients, fitting)
    offers = choose(wish, known, usual, spot)
    rows = [_HEAD, *(_row(offer, wish.nodes, usual, spot) for offer in offers[:_SHOWN])]
    lines = list(aligned(rows))
    if len(offers) > _SHOWN:
        lines.append(f"and {len(offers) - _SHOWN} more that cost more")
    nodes = f"{wish.nodes} nodes" if wish.nodes > 1 else "one node"
    lines.append(
        f"{clients.region}, dollars an hour for {nodes}; on-demand prices are "
        f"{age / 3600:.0f} h old, spot prices are of now"
    )
    return "\n".join(lines)


_HEAD = ("type", "GPUs", "CPUs", "memory", "on demand", "spot", "zones")


def _row(
    offer: Offer,
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
