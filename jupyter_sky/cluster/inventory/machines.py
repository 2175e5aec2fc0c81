"""The machines of a cluster, as its row in the registry describes them.

What describes a machine is its provider's, which may say more or less of it in another version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.storage.row import Broken, RegistryRow, unreadable
from jupyter_sky.errors import NameTaken, SkyError
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Machine, Provider


class UnreadableRow(SkyError):
    """The row of a cluster cannot be read: another version may have written it."""


def machines_of(row: RegistryRow, provider: Provider) -> list[Machine]:
    """Return the machines that belong to a cluster.

    Raises
    ------
    UnreadableRow
        If this version cannot tell how one of its machines is reached.
    """
    return every_machine_of(row, provider)[: len(row.machines)]


def every_machine_of(row: RegistryRow, provider: Provider) -> list[Machine]:
    """Return the machines of a cluster, then those that do not belong to it yet, or no longer.

    Raises
    ------
    UnreadableRow
        As `machines_of`.
    """
    found = []
    for each in [*row.machines, *row.leaving]:
        if (machine := machine_of(each, provider)) is None:
            raise UnreadableRow(unreadable(row.name))
        found.append(machine)
    return found


def machine_of(described: Mapping[str, Any], provider: Provider) -> Machine | None:
    """Return a machine, or ``None`` if this version cannot tell how it is reached."""
    try:
        return provider.machine(described)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def find_broken(name: str) -> Broken | None:
    """Return the row of that name if it, or what it says of its machines, cannot be read."""
    row = registry.named(name)
    if not isinstance(row, RegistryRow):
        return row
    try:
        if row.provider in providers():
            every_machine_of(row, providers()[row.provider])
    except UnreadableRow:
        return Broken(row.id, row.name, row.provider)
    return None


def why_taken(name: str, provider: Provider) -> SkyError:
    """Return why a provider cannot start a cluster of a name that is in the registry."""
    if find_broken(name):
        return UnreadableRow(unreadable(name))
    left = registry.find(name)
    if left and not (left.machines or left.is_starting or left.provider == provider.name):
        return SkyError(
            f"cluster {name} did not come up when it was started with --provider {left.provider}: "
            f"`%sky down {name}` removes what is left of it, or use another `--cluster NAME`."
        )
    return NameTaken(
        f"there is a cluster {name} already: end it with `%sky down {name}`, or use it in cells of "
        f"a notebook with `%%sky --cluster {name}`."
    )
