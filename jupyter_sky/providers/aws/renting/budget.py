"""The rest of ``--max-cost``, and how it is shared with additional instances.

Only the instances know when the money will be spent. The rest is the time until then, times the
price of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.scaling import RunningCluster

WORTH_IT = 300.0
"""Seconds that the money has to last for machines to be started."""


@dataclass
class Budget:
    """The money left for a cluster.

    Attributes
    ----------
    machines
        The instances that spend it.
    price
        Dollars per hour of all of them, including lost ones.
    told
        Those that power off earlier because of `share_with`.
    earlier
        By how many seconds.
    """

    machines: Sequence[Instance]
    price: float
    told: list[Instance] = field(default_factory=list)
    earlier: float = 0.0

    @classmethod
    def of(cls, running: RunningCluster) -> Budget:
        """Return the budget of a cluster."""
        machines = [each for each in running.machines if isinstance(each, Instance)]
        prices = [node.price or 0.0 for node in (*running.nodes, *running.lost)]
        return cls(machines, sum(prices))

    def share_with(self, count: int, price: float | None) -> float | None:
        """Let all power off earlier, because instances are added; return the seconds from now.

        Parameters
        ----------
        count, price
            How many are added, including replacements, and the dollars per hour of each.

        Raises
        ------
        UsageError
            If the price is not known, or the money would be spent soon.
        """
        # Not earlier: this computer may have slept while its user was asked whether to pay.
        seconds = self.machines[0].seconds_until_power_off()
        if seconds is None:
            return None
        if price is None:
            raise UsageError(
                "AWS gives no price for another node there now, so --max-cost cannot be kept: try "
                "later, or start a new cluster without it."
            )
        there = _price(self.machines)
        new = there + count * price
        left = seconds * min(1.0, self.price / new)
        if left < WORTH_IT:
            raise UsageError(
                f"what is left of --max-cost would last {max(0.0, left) / 60:.0f} minutes with "
                f"{len(self.machines) + count} nodes: start a new cluster with a higher limit."
            )
        self.earlier = seconds - left
        for each in self.machines:
            each.power_off_in(left)
            self.told.append(each)
        return left

    def share_as_before(self) -> None:
        """Undo `share_with` on reachable instances; the others power off earlier."""
        for each in self.told:
            try:
                if (seconds := each.seconds_until_power_off()) is not None:
                    each.power_off_in(seconds + self.earlier)
            except SkyError:
                continue


def money_left(machines: Sequence[Instance]) -> float | None:
    """Return the dollars that running instances may still cost; ``None`` without a limit.

    Raises
    ------
    SkyError
        If one does not tell.
    """
    seconds = machines[0].seconds_until_power_off()
    if seconds is None:
        return None
    return seconds * _price(machines) / 3600


def share_rest(machines: Sequence[Instance], gone: Sequence[Instance]) -> None:
    """Let instances power off later, because others of their cluster are gone.

    Raises
    ------
    SkyError
        If one cannot be told; it then powers off as early as before.
    """
    seconds, price = machines[0].seconds_until_power_off(), _price(machines)
    if seconds is None or not price:
        return
    for each in machines:
        each.power_off_in(seconds * (price + _price(gone)) / price)


def _price(machines: Sequence[Instance]) -> float:
    """Return the dollars per hour of instances."""
    return sum(node.price or 0.0 for each in machines for node in each.nodes)


def spent_at(rented: Sequence[RentedInstance], money: float | None) -> float | None:
    """Return when new instances will have cost that much, by ``time.monotonic``."""
    price = sum(each.price or 0.0 for each in rented)
    return None if money is None or not price else time.monotonic() + 3600 * money / price
