"""What machines cost from when they are rented until they join a cluster, or are given back."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from jupyter_sky.cluster.cost_meter import ClusterCost
from jupyter_sky.cluster.inventory.registry import RegistryError, RowChange, update
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.progress import Preparation, Rented
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster, Scalable
from jupyter_sky.transport.tasks import blocking, shielded


async def add_nodes(
    provider: Scalable, running: RunningCluster, cost: ClusterCost, progress: Progress
) -> AddedNodes:
    """Have a provider add nodes; what their machines cost meanwhile is added to the cluster's cost.

    Parameters and errors as of `Scalable.add_nodes`.
    """
    rented: list[tuple[Rented, float]] = []

    def say(said: str | Preparation) -> None:
        if isinstance(said, Rented) and said.price is not None:
            rented.append((said, time.time()))
            _begin_rate(running.identity)
        progress(said)

    try:
        return await provider.add_nodes(running, say)
    finally:
        for each, since in rented:
            hours = max(0.0, time.time() - since) / 3600
            cost.add((each.price or 0.0) * hours)
            await shielded(blocking(_begin_rate, running.identity, each))


def _begin_rate(identity: str, joining: Rented | None = None) -> None:
    """Count a cluster anew from now on; what was to join until now has cost something, too."""

    def decide(row: RegistryRow | None) -> RowChange | None:
        if row is None or row.rate.price is None:
            return None
        spent = row.spent(time.time())
        if joining is not None:
            spent = replace(
                spent,
                price=spent.price + (joining.price or 0.0),
                nodes=spent.nodes + joining.nodes,
                gpus=spent.gpus + joining.gpus,
            )
        meter = [row.meter.spent + spent.dollars, spent.until]
        return RowChange({"meter": meter}, spent=spent)

    with suppress(RegistryError):
        update(identity, decide)
