"""What cells on ranks need of the notebook: names that they read, and what those use in turn."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.packing import Item, Items, Standpoint
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.errors import UsageError


class Dependencies:
    """Finds out what cells need, and remembers what earlier ones have defined on ranks.

    Parameters
    ----------
    remote_state
        What the ranks have.

    Attributes
    ----------
    shares_files
        Whether the ranks see the notebook's files.
    """

    def __init__(self, remote_state: RemoteState) -> None:
        self.shares_files = True
        self._remote_state = remote_state
        self._standpoint = Standpoint()
        self._bodies: dict[str, frozenset[str]] = {}
        self._later: set[str] = set()
        self._imported: set[str] = set()
        self._submodules: dict[str, set[str]] = {}
        self._modules: set[str] = set()

    def items(self, namespace: Mapping[str, Any]) -> Items:
        """Return what the notebook has to send."""
        return Items(namespace, self._bodies, self._submodules)

    def find(
        self,
        names: Iterable[str],
        items: Items,
        ranks: Sequence[int],
        *,
        cell: CellNames,
        forced: Collection[str],
    ) -> list[Item]:
        """Return what ranks have to have for a cell, whether they have it already or not.

        Parameters
        ----------
        names
            What the cell needs.
        items
            What the notebook has.
        ranks
            Who runs it.
        cell
            The cell.
        forced
            Names that count even if the ranks have something else in their place.

        Raises
        ------
        UsageError
            When one of them cannot be pickled.
        """
        self._bodies.update(cell.bodies)
        self._imported = (self._imported - cell.writes) | cell.imported

        def skip(name: str, value: Any) -> bool:
            return name not in forced and all(
                self._remote_state.has_rebound(rank, name, value) for rank in ranks
            )

        found = items.find(names, cell, skip)
        self._later.update(cell.later, *(item.pickled.needs for item in found))
        if any(self._is_unknown(name, items.namespace, ranks) for name in items.visited):
            # It may be an object whose methods look up what the notebook has assigned since.
            news = set().union(
                *(self._remote_state.assigned_since(rank, self._later) for rank in ranks)
            )
            for name in sorted(news):
                with suppress(UsageError):  # nobody has asked for it
                    more = items.find([name], cell, skip)
                    found += [item for item in more if item not in found]
        if self.shares_files:
            return [*found, self._standpoint.item]
        # Those that earlier cells have imported may have been edited since.
        self._modules.update(cell.modules, *(item.pickled.modules for item in found))
        return [*found, *items.trees(self._modules)]

    def forget(self, name: str) -> None:
        """Note that the notebook has put something else in place of what ranks had defined."""
        self._bodies.pop(name, None)

    def _is_unknown(self, name: str, namespace: Mapping[str, Any], ranks: Sequence[int]) -> bool:
        """Return whether a name has a value on ranks that the notebook does not know."""
        if name not in namespace:
            return name not in self._imported and not hasattr(builtins, name)
        return any(self._remote_state.has_rebound(rank, name, namespace[name]) for rank in ranks)
