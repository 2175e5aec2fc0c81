"""What is left of ``--max-cost``: more machines spend it faster.

Each machine knows when the money is spent, and nobody else has to. So the time that is left, times
what all of them cost, is what is left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.base import Standing

_WORTH_IT = 300.0  # seconds that it has to last


@dataclass(frozen=True)
class Budget:
    """The money of a cluster.

    Attributes
    ----------
    machines
        Those that spend it.
    until
        When it is spent, as ``time.monotonic`` tells it; ``None`` if there is no limit.
    price
        Dollars an hour of all of them, and of those that were lost.
    """

    machines: Sequence[Instance]
    until: float | None
    price: float

    @classmethod
    def of(cls, standing: Standing) -> Budget:
        """Return the budget of a cluster."""
        machines = [each for each in standing.machines if isinstance(each, Instance)]
        left = machines[0].seconds_paid()
        prices = [node.price or 0.0 for node in (*standing.nodes, *standing.lost)]
        return cls(machines, None if left is None else time.monotonic() + left, sum(prices))

    def share_with(self, count: int, price: float | None) -> float | None:
        """Have machines power off earlier, as more of them come; return the seconds from now.

        Parameters
        ----------
        count, price
            How many come, also in place of lost ones, and what each costs an hour.
        """
        if self.until is None:
            return None
        if price is None:
            raise UsageError(
                "AWS does not tell what another node costs there now, so --max-cost cannot hold: "
                "try later, or start a cluster anew without it."
            )
        there = sum(node.price or 0.0 for each in self.machines for node in each.nodes)
        new = there + count * price
        left = (self.until - time.monotonic()) * min(1.0, self.price / new)
        if left < _WORTH_IT:
            raise UsageError(
                f"what is left of --max-cost would last {max(0.0, left) / 60:.0f} minutes with "
                f"{len(self.machines) + count} nodes: start a cluster anew with more."
            )
        for each in self.machines:
            each.limit(left)
        return left

    def share_as_before(self) -> None:
        """Undo `share_with`, where machines can be reached; they end earlier otherwise."""
        if self.until is None:
            return
        for each in self.machines:
            try:
                each.limit(self.until - time.monotonic())
            except SkyError:
                continue
