"""The cost of a cluster: per hour, and so far, even after price changes.

It is in dollars, or in GPU or node hours if nodes have no price but are shared with others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeGuard


class Unit(StrEnum):
    """The unit of a cost."""

    DOLLARS = "dollars"
    GPU_HOURS = "GPU hours"
    NODE_HOURS = "node hours"


@dataclass(frozen=True)
class CostRate:
    """The cost of a cluster per hour.

    Attributes
    ----------
    amount
        Dollars, or the number of GPUs or nodes; ``None`` if it costs nothing, or if that is not
        known.
    unit
        The unit.
    """

    amount: float | None
    unit: Unit = Unit.DOLLARS

    @property
    def price(self) -> float | None:
        """Dollars per hour; ``None`` if it costs none, or if that is not known."""
        return self.amount if self.unit is Unit.DOLLARS else None


@dataclass(frozen=True)
class CostMeter:
    """The cost of a cluster up to the last change of its rate.

    Attributes
    ----------
    spent
        The cost, in the unit of its rate.
    since
        When the rate changed, in seconds since the epoch; infinite once it costs nothing any more.
    """

    spent: float
    since: float

    def cost(self, rate: float | None, now: float) -> float | None:
        """Return the cost up to ``now``; ``None`` without a rate, which is for an hour."""
        return None if rate is None else self.spent + rate * max(0.0, now - self.since) / 3600

    def at_end(self, rate: float | None, when: float) -> CostMeter:
        """Return the meter of what has ended, and has cost so much an hour before."""
        spent = self.cost(rate, when)
        return self if spent is None else CostMeter(spent, math.inf)


class ClusterCost:
    """The cost of a running cluster.

    Parameters
    ----------
    meter
        Its cost up to now.
    counts_hours
        Whether it is in hours, as in `rate_of`.

    Attributes
    ----------
    meter
        Its cost up to the last change of its nodes.
    rate
        Its cost per hour since then.
    """

    def __init__(self, meter: CostMeter, counts_hours: bool) -> None:
        self.meter = meter
        self._counts_hours = counts_hours
        self.rate = rate_of((), counts_hours)

    @property
    def so_far(self) -> float | None:
        """Its cost so far, in the unit of its rate; ``None`` if it is free."""
        return self.meter.cost(self.rate.amount, time.time())

    def begin(self) -> None:
        """Count from now on: it has cost nothing before."""
        self.meter = CostMeter(0.0, time.time())

    def add(self, cost: float) -> None:
        """Add what machines have cost that were no nodes yet, in the unit of the rate."""
        if self.rate.amount is not None:
            self.meter = replace(self.meter, spent=self.meter.spent + cost)

    def set_nodes(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Count these nodes from now on, given as in `rate_of`."""
        if (spent := self.so_far) is not None:
            self.meter = CostMeter(spent, time.time())
        self.rate = rate_of(nodes, self._counts_hours)

    def end(self, when: float) -> None:
        """Count nothing after a time, in seconds since the epoch: nothing is left of it."""
        self.meter = self.meter.at_end(self.rate.amount, when)


def rate_of(nodes: Sequence[Mapping[str, Any]], counts_hours: bool) -> CostRate:
    """Return the cost of nodes per hour, from their data in messages and the registry.

    Parameters
    ----------
    counts_hours
        Whether to count the hours of their GPUs, or of nodes without GPUs.
    """
    if not counts_hours:
        return CostRate(total_price(node.get("price") for node in nodes))
    gpus = gpus_of(nodes)
    return CostRate(gpus, Unit.GPU_HOURS) if gpus else CostRate(len(nodes) or None, Unit.NODE_HOURS)


def gpus_of(nodes: Iterable[Mapping[str, Any]]) -> int:
    """Return the total number of GPUs of nodes."""
    counts = (node.get("accelerators") for node in nodes)
    return sum(int(count) for count in counts if _is_number(count))


def total_price(prices: Iterable[object]) -> float | None:
    """Return the dollars per hour of several nodes.

    Parameters
    ----------
    prices
        The prices of the nodes. Anything but numbers, as in a damaged row, is ignored.

    Returns
    -------
    float or None
        ``None`` if no node has a price: they are free, or the price is not known.
    """
    known = [price for price in prices if _is_number(price)]
    return sum(known) if known else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
