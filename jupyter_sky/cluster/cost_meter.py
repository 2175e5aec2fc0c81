"""What a cluster costs: an hour, and so far, also after its price has changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard


@dataclass(frozen=True)
class CostMeter:
    """What a cluster had cost at a moment, since which its price is the same.

    Attributes
    ----------
    spent
        Dollars.
    since
        The moment, in seconds since the epoch.
    """

    spent: float
    since: float

    def cost(self, price: float | None, now: float) -> float | None:
        """Return the dollars up to ``now``; ``None`` without a price, which is for an hour."""
        return None if price is None else self.spent + price * max(0.0, now - self.since) / 3600


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
