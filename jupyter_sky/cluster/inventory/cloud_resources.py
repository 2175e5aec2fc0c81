"""What clusters hold that costs money, and which of it nobody needs any more.

Everything that is rented bears the id of its cluster, whose row is in the registry before anything
is rented. So what has no row was forgotten, also when a kernel was killed at the worst moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.probe import look
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import CloudProvider, CloudResources
from jupyter_sky.transport import event_loop


@dataclass(frozen=True)
class Rental:
    """What a cluster holds.

    Attributes
    ----------
    holding
        What it is.
    landlord
        Whom it is given back to.
    is_known
        Whether it belongs to this registry.
    is_abandoned
        Whether it does, and the cluster never came up, has lost an agent or is forgotten.
    """

    holding: CloudResources
    landlord: CloudProvider
    is_known: bool
    is_abandoned: bool

    def __str__(self) -> str:
        held = self.holding
        return (
            f"{held.name or held.id}: {held.what or 'its entry in the registry'} in {held.location}"
        )

    def remove(self) -> None:
        """Give it back, and return when it is gone."""
        held = self.holding
        event_loop.wait(self.landlord.release_cluster(held.id, held.location, lambda text: None))
        registry.remove(held.id)


def find() -> tuple[list[Rental], list[str]]:
    """Return what all clusters hold, and the rows of those that never came to hold anything.

    The second part says what could not be looked at, and why, a sentence each.
    """
    found: list[Rental] = []
    trouble: list[str] = []
    for provider in providers().values():
        if isinstance(provider, CloudProvider):
            holdings, unseen = event_loop.wait(provider.list_resources())
            found += _of(provider, holdings)
            trouble += unseen
    return found, trouble


def upkeep() -> list[str]:
    """Clear up what serves several clusters, and return what of it costs, a sentence each."""
    landlords = [each for each in providers().values() if isinstance(each, CloudProvider)]
    return [text for each in landlords for text in event_loop.wait(each.remove_unused())]


def _of(landlord: CloudProvider, holdings: Sequence[CloudResources]) -> list[Rental]:
    # Rows come second: whatever was held before has one, unless it was forgotten.
    rows = [row for row in registry.rows() if row.provider == landlord.name]
    looks = look(rows, {landlord.name: landlord})
    gone = [row for row, glance in zip(rows, looks, strict=True) if glance.phase == "gone"]
    recorded, dead = ({row.id for row in some} for some in (rows, gone))
    found = []
    for held in holdings:
        is_known = held.is_ours or held.id in recorded
        is_abandoned = held.id in dead or (is_known and held.id not in recorded)
        found.append(Rental(held, landlord, is_known, is_abandoned))
    for row in gone:
        if row.id not in {held.id for held in holdings}:
            nothing = CloudResources(row.id, row.name, row.spec.get("place", ""), "", True, "")
            found.append(Rental(nothing, landlord, True, True))
    return found
