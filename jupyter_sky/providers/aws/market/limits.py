"""What machines may cost: which offers keep to it, how long they run, how far spot may rise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.market.selection import InstanceOffer

_DEARER = 1.5
"""How much more than the first choice another type may cost that is taken in its place."""

MAY_RISE = 1.2
"""How far the price of spot may rise above what it was, where all that is spent counts."""

_MOST_RISE = 4.0
"""The same where nothing else limits it: AWS takes no more than some multiple of its price."""


@dataclass(frozen=True)
class Limits:
    """What the nodes of a cluster may cost.

    Attributes
    ----------
    nodes
        Number of nodes of the cluster.
    max_price, max_cost, ask_above
        As in `jupyter_sky.AWS`: dollars an hour and in all, for all nodes.
    seconds
        Seconds that are left to a cluster that has run already.
    """

    nodes: int
    max_price: float | None = None
    max_cost: float | None = None
    ask_above: float = 10.0
    seconds: float | None = None

    def most_of(self, offer: InstanceOffer, zone: str) -> float | None:
        """Return the dollars an hour that one instance alone may cost in a zone; ``None``: any.

        On-demand prices do not change. What spot costs does, and AWS takes an instance back whose
        price has risen above what was agreed to.
        """
        price = offer.prices[zone]
        if not offer.spot:
            return price
        agreed = None if self.max_price is None else self.max_price / self.nodes - offer.besides
        if price is None:
            # Spot may cost what on demand does there, which nobody was asked for.
            price = None if offer.most is None else offer.most - offer.besides
        if price is None or (agreed is not None and self.max_cost is None):
            return agreed
        if self.max_cost is not None or self.seconds is not None:
            return min(MAY_RISE * price, agreed or float("inf"))
        # Who was not asked has agreed to what asks nobody, and who was asked to what was said.
        unasked = self.ask_above / self.nodes - offer.besides
        return max(MAY_RISE * price, min(unasked, _MOST_RISE * price))

    def lifetime(self, offer: InstanceOffer, zone: str) -> float | None:
        """Return for how many seconds instances may run, with all that is paid besides them."""
        if self.seconds is not None:
            return self.seconds
        most = self.most_of(offer, zone)
        if self.max_cost is None or most is None:
            return None
        most += offer.besides + offer.type.surplus
        return max(1.0, 3600 * self.max_cost / (self.nodes * most)) if most else None


def is_as_cheap(offer: InstanceOffer, first: InstanceOffer) -> bool:
    """Return whether an offer may be taken in the place of the first."""
    if first.price is None or offer.price is None:
        return first.price is None and offer is first
    return offer.price <= _DEARER * first.price


def where_price_is_known(offers: Sequence[InstanceOffer], denied: bool) -> list[InstanceOffer]:
    """Leave out zones in which ``--max-cost`` cannot hold.

    Parameters
    ----------
    denied
        Whether prices are not known because the user may not see them.
    """
    first = offers[0]
    if first.price is None:
        instead = "leave it out, and let `--idle-timeout` end the cluster."
        if denied:
            instead = "leave it out, or ask for the permission pricing:GetProducts."
        if first.spot:
            instead = "leave out --spot, or name another --zone."
        raise UsageError(
            f"AWS gives no price for {first.type.name}, so --max-cost cannot be kept: {instead}"
        )
    return [
        replace(each, prices={zone: p for zone, p in each.prices.items() if p is not None})
        for each in offers
    ]
