"""What clusters have rented, which costs until it is released, and which of it is orphaned.

Everything that is rented is tagged with the id of its cluster, whose row is in the registry before
anything is rented. What has no row is therefore an orphan, whenever its kernel was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.cluster.inventory.storage.row import Broken, RegistryRow
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.cloud import CloudProvider, CloudResources
from jupyter_sky.transport import event_loop


@dataclass(frozen=True)
class RentedCluster:
    """What a cluster holds at a provider.

    Attributes
    ----------
    resources
        What it is.
    provider
        Where it is rented.
    is_known
        Whether it belongs to this registry.
    is_orphaned
        Whether it can be removed: it belongs here, and the cluster never came up, has lost an
        agent, or has no row any more; or the user has started it elsewhere, and nothing of it runs.
    strays
        Instances of a cluster that is up, of which it does not know: they came while it grew, or
        were to leave, and the kernel that saw to it is gone.
    is_readable
        Whether its row can be read, if it has one: another version may have written it, which knows
        whether the cluster is up.
    """

    resources: CloudResources
    provider: CloudProvider
    is_known: bool
    is_orphaned: bool
    strays: tuple[str, ...] = ()
    is_readable: bool = True

    def __str__(self) -> str:
        held = self.resources
        if self.strays:
            count = format_count(len(self.strays), "instance")
            return f"{held.name or held.id}: {count} of which it does not know in {held.location}"
        return (
            f"{held.name or held.id}: {held.what or 'its entry in the registry'} in {held.location}"
        )

    def remove(self) -> None:
        """Release it, and return when it is gone.

        Raises
        ------
        SkyError
            When something may still be there; its row stays then.
        """
        held = self.resources
        if self.strays:
            event_loop.wait(self.provider.release_strays(held.id, held.location, self.strays))
            return
        event_loop.wait(self.provider.release_cluster(held.id, held.location, lambda text: None))
        registry.remove(held.id)


def find(everywhere: bool = False) -> tuple[list[RentedCluster], list[str]]:
    """Return what all clusters hold, and the rows of those that never came to hold anything.

    The second part says what could not be examined, and why, a sentence each.

    Parameters
    ----------
    everywhere
        Whether to look where this registry never was, too.
    """
    found: list[RentedCluster] = []
    trouble: list[str] = []
    for provider in _cloud_providers():
        held, unseen = _find_at(provider, everywhere)
        found += held
        trouble += unseen
    return found, trouble


def _find_at(
    provider: CloudProvider, everywhere: bool = False
) -> tuple[list[RentedCluster], list[str]]:
    holdings, unseen = event_loop.wait(provider.list_resources(everywhere))
    return _of(provider, holdings), unseen


def end_unreadable(row: Broken) -> str:
    """End what is rented for a cluster whose row cannot be read, and remove the row; say so.

    Raises
    ------
    SkyError
        If something may still be there; its row stays then.
    """
    found: list[RentedCluster] = []
    trouble: list[str] = []
    provider = providers().get(row.provider)
    if provider is None:  # which may be what cannot be read
        found, trouble = find()
    elif isinstance(provider, CloudProvider):
        found, trouble = _find_at(provider)
    held = [each for each in found if each.resources.id == row.id]
    if trouble and not held:
        raise SkyError(
            f"{row.name} cannot be ended now, as its entry in the registry cannot be read and it "
            f"may have machines that cannot be seen: {'; '.join(trouble)}"
        )
    for each in held:
        each.remove()
    registry.remove(row.id)
    ended = "".join(f" with {each.resources.what}" for each in held)
    how = f",{ended}" if held else "; check whether any of its nodes is still running"
    said = f"{row.name}: removed from the registry, where its entry could not be read{how}"
    return "; ".join([said, *trouble])


async def refuse_elsewhere(provider: Provider, row: RegistryRow) -> None:
    """Refuse to end rented machines that were started elsewhere: a copied row may be outdated.

    Raises
    ------
    SkyError
        If instances of it are running.
    """
    if not isinstance(provider, CloudProvider):
        return
    held, _ = await provider.list_resources()
    for each in held:
        if each.id == row.id and each.instances and not each.is_ours:
            raise SkyError(
                f"cluster {row.name} was started by {each.started_by} in another registry, and "
                f"runs: use another name with `--cluster NAME`, or end it with "
                f"`%sky down {row.name}`."
            )


def upkeep() -> list[str]:
    """Remove what no cluster needs of what several share; return what of the rest costs."""
    return [text for each in _cloud_providers() for text in event_loop.wait(each.remove_unused())]


def _cloud_providers() -> list[CloudProvider]:
    return [each for each in providers().values() if isinstance(each, CloudProvider)]


def _of(provider: CloudProvider, holdings: Sequence[CloudResources]) -> list[RentedCluster]:
    # Rows come second: whatever was held before has one, unless it is an orphan.
    every = registry.read()
    broken = {row.id for row in every if isinstance(row, Broken)}
    rows = [row for row in every if isinstance(row, RegistryRow) and row.provider == provider.name]
    results = probe(rows, {provider.name: provider})
    gone = [row for row, each in zip(rows, results, strict=True) if each.phase is ProbePhase.GONE]
    recorded, dead = {row.id: row for row in rows}, {row.id for row in gone}
    with_row = {*recorded, *broken}
    found = []
    for held in holdings:
        has_row, is_dead = held.id in with_row, held.id in dead
        is_known, is_readable = held.is_ours or has_row, held.id not in broken
        strays = () if is_dead else _strays(held, recorded.get(held.id))
        # A row that was copied says nothing of a cluster that goes on where it was started.
        is_gone = (held.is_ours and is_dead) or (
            not has_row and (held.is_ours or held.is_abandoned)
        )
        is_orphaned = is_gone or bool(strays)
        found.append(RentedCluster(held, provider, is_known, is_orphaned, strays, is_readable))
    for row in gone:
        if row.id not in {held.id for held in holdings}:
            nothing = CloudResources(row.id, row.name, row.spec.get("place", ""), "", True, "")
            found.append(RentedCluster(nothing, provider, True, True))
    return found


def _strays(held: CloudResources, row: RegistryRow | None) -> tuple[str, ...]:
    """Return the instances of a cluster that is up of which its row does not know."""
    if row is None or not held.is_ours or row.is_starting or row.may_grow or row.is_being_scaled:
        return ()
    # What was about to leave when a kernel was killed is used by nobody any longer.
    leaving = row.leaving if row.is_scaled_here else []
    known = {each.get("id") for each in [*row.machines, *leaving]}
    return tuple(each for each in held.instances if each not in known)
