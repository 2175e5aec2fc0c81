"""What a cluster has cost so far, also after its price has changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostMeter:
    """What it had cost at a moment; the price is the same since.

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
