"""What a cluster costs: an hour, and so far, also after its price has changed.

It costs dollars, or hours of GPUs or nodes where these have no price, but others wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard


class Unit(StrEnum):
    """What a cost is counted in."""

    DOLLARS = "dollars"
    GPU_HOURS = "GPU hours"
    NODE_HOURS = "node hours"


@dataclass(frozen=True)
class Rate:
    """What a cluster costs an hour.

    Attributes
    ----------
    amount
        Dollars, or how many GPUs or nodes it has; ``None`` if it costs nothing, or if that is not
        known.
    unit
        What it costs.
    """

    amount: float | None
    unit: Unit = Unit.DOLLARS

    @property
    def price(self) -> float | None:
        """Dollars an hour; ``None`` if it costs none, or if that is not known."""
        return self.amount if self.unit is Unit.DOLLARS else None


@dataclass(frozen=True)
class CostMeter:
    """What a cluster had cost at a moment, since which its rate is the same.

    Attributes
    ----------
    spent
        In the unit of its rate.
    since
        The moment, in seconds since the epoch.
    """

    spent: float
    since: float

    def cost(self, rate: float | None, now: float) -> float | None:
        """Return the cost up to ``now``; ``None`` without a rate, which is for an hour."""
        return None if rate is None else self.spent + rate * max(0.0, now - self.since) / 3600


def rate_of(nodes: Sequence[Mapping[str, Any]], counts_hours: bool) -> Rate:
    """Return what nodes cost an hour, as messages and the registry hold them.

    Parameters
    ----------
    counts_hours
        Whether the hours of their GPUs count, or their own where they have none.
    """
    if not counts_hours:
        return Rate(total_price(node.get("price") for node in nodes))
    gpus = gpus_of(nodes)
    return Rate(gpus, Unit.GPU_HOURS) if gpus else Rate(len(nodes) or None, Unit.NODE_HOURS)


def gpus_of(nodes: Iterable[Mapping[str, Any]]) -> int:
    """Return how many GPUs nodes have together."""
    counts = (node.get("accelerators") for node in nodes)
    return sum(int(count) for count in counts if _is_number(count))


def total_price(prices: Iterable[object]) -> float | None:
    """Return the dollars an hour of several nodes.

    Parameters
    ----------
    prices
        Those of the nodes. What is no number is left out, also where a damaged row holds it.

    Returns
    -------
    float or None
        ``None`` if no node has a price: they cost nothing, or it is not known.
    """
    known = [price for price in prices if _is_number(price)]
    return sum(known) if known else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
