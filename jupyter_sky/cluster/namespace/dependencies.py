"""Dependencies: what a cell on ranks needs of the notebook, directly and through what it uses."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.packing import ItemCollector, NamespaceItem
from jupyter_sky.cluster.namespace.process_items import ProcessItems
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.process import module_attributes


class Dependencies:
    """Finds what cells need, and remembers what earlier cells have defined on ranks.

    It belongs to `NamespaceSync`, whose lock has to be held.

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
        self._process_items = ProcessItems()
        # What functions look up that earlier cells have defined on ranks; the second of all of
        # them, also of methods and of functions without a name.
        self._remote_reads: dict[str, frozenset[str]] = {}
        self._deferred_reads: set[str] = set()
        self._imported: set[str] = set()
        self._submodules: dict[str, set[str]] = {}
        self._modules: set[str] = set()

    def collector(self, namespace: Mapping[str, Any]) -> ItemCollector:
        """Return what pickles the notebook's values for one update."""
        names = {**namespace, **module_attributes.values()}
        return ItemCollector(names, self._remote_reads, self._submodules)

    def find(
        self,
        names: Iterable[str],
        collector: ItemCollector,
        ranks: Sequence[int],
        *,
        cell: CellNames,
        forced: Collection[str],
    ) -> list[NamespaceItem]:
        """Return what ranks have to have for a cell, whether they have it already or not.

        Parameters
        ----------
        names
            What the cell needs.
        collector
            What pickles the notebook's values.
        ranks
            The ranks that run it.
        cell
            The cell.
        forced
            Names that count even if the ranks have something else in their place.

        Raises
        ------
        UsageError
            When one of them cannot be pickled.
        """
        state = self._remote_state
        self._remote_reads.update(cell.deferred_reads)
        self._imported = (self._imported - cell.writes) | cell.imported

        def skip(name: str, value: Any) -> bool:
            return name not in forced and all(
                state.has_rebound(rank, name, value) for rank in ranks
            )

        found = collector.collect(names, cell, skip)
        self._deferred_reads.update(
            cell.all_deferred_reads, *(item.pickled.needs for item in found)
        )
        if any(self._is_unknown(name, collector.namespace, ranks) for name in collector.visited):
            # It may be an object whose methods look up what the notebook has assigned since.
            since = set().union(
                *(state.assigned_since(rank, self._deferred_reads) for rank in ranks)
            )
            for name in sorted(since):
                with suppress(UsageError):  # the cell does not name it
                    more = collector.collect([name], cell, skip)
                    found += [item for item in more if item not in found]
        used = cell.modules.union(*(item.pickled.modules for item in found))
        for attribute in module_attributes.values(used):
            with suppress(UsageError):  # the cell does not name it
                found += collector.collect([attribute], cell, skip)
        found = [*found, *self._process_items.find(self.shares_files)]
        if self.shares_files:
            return found
        # Also those that earlier cells have imported: they may have been edited since.
        self._modules.update(cell.modules, *(item.pickled.modules for item in found))
        return [*found, *collector.modules(self._modules)]

    def forget(self, name: str) -> None:
        """Forget a function of the ranks that the notebook has put something else in place of."""
        self._remote_reads.pop(name, None)

    def _is_unknown(self, name: str, namespace: Mapping[str, Any], ranks: Sequence[int]) -> bool:
        """Return whether a name has a value on ranks that the notebook does not know."""
        if name not in namespace:
            return name not in self._imported and not hasattr(builtins, name)
        return any(self._remote_state.has_rebound(rank, name, namespace[name]) for rank in ranks)
