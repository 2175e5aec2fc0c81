"""What machines cost from when they are rented until they join a cluster, or are given back."""

from __future__ import annotations

import time
from contextlib import suppress

from jupyter_sky.cluster.cost_meter import ClusterCost, total_price
from jupyter_sky.cluster.inventory import row_updates
from jupyter_sky.cluster.inventory.registry import RegistryError, RowChange, update
from jupyter_sky.cluster.inventory.storage.ledger import Spent
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.cloud import CloudProvider
from jupyter_sky.providers.progress import Preparation, Rented
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster, Scalable
from jupyter_sky.transport.tasks import blocking, shielded, uninterrupted


class JoiningCost:
    """Counts what machines cost that join a cluster in a block, or are given back in it.

    Parameters
    ----------
    running
        The cluster that they are to join.
    cost
        What it costs as this process counts it: from when nodes were added.
    progress
        Called with the present step, in words.
    """

    def __init__(self, running: RunningCluster, cost: ClusterCost, progress: Progress) -> None:
        self._running = running
        self._cost = cost
        self._progress = progress
        self._rented: tuple[Rented, float] | None = None
        # Lost nodes cost something until others have taken their places.
        self._counted = total_price(node.price for node in running.lost) or 0.0

    async def __aenter__(self) -> JoiningCost:
        return self

    async def __aexit__(self, *error: object) -> None:
        # In the registry they are nodes from now on, or will never be.
        await shielded(blocking(self._record))

    async def add_nodes(self, provider: Scalable) -> AddedNodes:
        """Have a provider add nodes; errors as of `Scalable.add_nodes`."""
        identity = self._running.identity
        progress = row_updates.keep_agents(identity, provider, self._say)
        try:
            return await provider.add_nodes(self._running, progress)
        except BaseException:
            if not isinstance(provider, CloudProvider):
                with suppress(RegistryError):  # what went wrong says more
                    await uninterrupted(blocking(row_updates.forget_agents, identity))
            raise
        finally:
            if self._rented:
                rented, since = self._rented
                self._cost.add(self._price(rented) * max(0.0, time.time() - since) / 3600)

    def _record(self) -> None:
        if self._rented and (price := self._price(self._rented[0])):
            with suppress(RegistryError):
                _write(self._running.identity, *self._rented, price)

    def _say(self, said: str | Preparation) -> None:
        if isinstance(said, Rented):  # instead of those before, which were taken back
            self._rented = (said, time.time()) if said.nodes else None
        self._progress(said)

    def _price(self, rented: Rented) -> float:
        return max(0.0, (rented.price or 0.0) - self._counted)


def _write(identity: str, rented: Rented, since: float, price: float) -> None:
    def decide(row: RegistryRow | None) -> RowChange | None:
        if row is None:
            return None
        place = row.spent(since).place + ", to join it"
        spent = Spent(row.name, place, since, time.time(), price, rented.nodes, rented.gpus)
        meter = [row.meter.spent + spent.dollars, row.meter.since]
        return RowChange({"meter": meter}, spent=spent)

    update(identity, decide)
