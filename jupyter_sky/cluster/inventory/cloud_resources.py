"""What clusters have rented, which costs until it is released, and which of it is orphaned.

Everything that is rented bears the id of its cluster, whose row is in the registry before anything
is rented. So what has no row is an orphan, also when a kernel was killed at the worst moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import CloudProvider, Holding
from jupyter_sky.transport import event_loop


@dataclass(frozen=True)
class RentedCluster:
    """What a cluster holds at a provider.

    Attributes
    ----------
    holding
        What it is.
    provider
        Where it is rented.
    is_known
        Whether it belongs to this registry.
    is_orphaned
        Whether it does, and the cluster never came up, has lost an agent, or has no row any more.
    """

    holding: Holding
    provider: CloudProvider
    is_known: bool
    is_orphaned: bool

    def __str__(self) -> str:
        held = self.holding
        return f"{held.name or held.id}: {held.what or 'its entry in the registry'} in {held.place}"

    def remove(self) -> None:
        """Release it, and return when it is gone.

        Raises
        ------
        SkyError
            When something may still be there; its row stays then.
        """
        held = self.holding
        event_loop.wait(self.provider.release(held.id, held.place, lambda text: None))
        registry.remove(held.id)


def find() -> tuple[list[RentedCluster], list[str]]:
    """Return what all clusters hold, and the rows of those that never came to hold anything.

    The second part says what could not be examined, and why, a sentence each.
    """
    found: list[RentedCluster] = []
    trouble: list[str] = []
    for provider in _cloud_providers():
        holdings, unseen = event_loop.wait(provider.holdings())
        found += _of(provider, holdings)
        trouble += unseen
    return found, trouble


def upkeep() -> list[str]:
    """Remove what no cluster needs of what several share; return what of the rest costs."""
    return [text for each in _cloud_providers() for text in event_loop.wait(each.upkeep())]


def _cloud_providers() -> list[CloudProvider]:
    return [each for each in providers().values() if isinstance(each, CloudProvider)]


def _of(provider: CloudProvider, holdings: Sequence[Holding]) -> list[RentedCluster]:
    # Rows come second: whatever was held before has one, unless it is an orphan.
    rows = [row for row in registry.rows() if row.provider == provider.name]
    results = probe(rows, {provider.name: provider})
    gone = [row for row, each in zip(rows, results, strict=True) if each.phase is ProbePhase.GONE]
    recorded, dead = ({row.id for row in some} for some in (rows, gone))
    found = []
    for held in holdings:
        is_known = held.is_ours or held.id in recorded
        is_orphaned = held.id in dead or (is_known and held.id not in recorded)
        found.append(RentedCluster(held, provider, is_known, is_orphaned))
    for row in gone:
        if row.id not in {held.id for held in holdings}:
            nothing = Holding(row.id, row.name, row.spec.get("place", ""), "", True, "")
            found.append(RentedCluster(nothing, provider, True, True))
    return found
