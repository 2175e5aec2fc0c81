"""Dependencies: what a cell on ranks needs from the notebook, directly and indirectly."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.items.process_items import ProcessItems
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.object_tokens.kinds import holds_settings
from jupyter_sky.serialization.process import module_attributes


class Dependencies:
    """Finds what cells need, and remembers what earlier cells have defined on ranks.

    It belongs to `NamespaceSync`, whose lock has to be held.

    Attributes
    ----------
    shares_files
        Whether the ranks see the notebook's files.
    asked_variables
        Environment variables that cells asked for once the cluster was there, with their values.
    """

    def __init__(self) -> None:
        self.shares_files = True
        self.asked_variables: dict[str, str] = {}
        self._process_items = ProcessItems(self.asked_variables)
        # The names that functions look up which earlier cells have defined on ranks: first by the
        # function's name, then of all functions, also methods and those without a name.
        self._remote_reads: dict[str, frozenset[str]] = {}
        self._deferred_reads: set[str] = set()
        self._imported: set[str] = set()
        self._submodules: dict[str, set[str]] = {}
        self._modules: set[str] = set()

    def collector(self, namespace: Mapping[str, Any], cell: CellNames) -> ItemCollector:
        """Return a collector, which pickles the notebook's values for the run of a cell."""
        names = {**namespace, **module_attributes.values()}
        return ItemCollector(names, cell, self._remote_reads, self._submodules)

    def learn(self, cell: CellNames) -> None:
        """Learn what ranks will have defined and imported, as a run of a cell is asked for.

        Only then: what the notebook assigns later, or a later cell binds, takes its place.
        """
        self._remote_reads.update(cell.deferred_reads)
        self._imported = (self._imported - cell.writes) | cell.imported

    def find(
        self,
        names: Iterable[str],
        collector: ItemCollector,
        state: StateAtTurn,
        ranks: Sequence[int],
        cell: CellNames,
        forced: Collection[str],
        is_all: bool = True,
    ) -> list[NamespaceItem]:
        """Return what ranks need for a cell, also what they have already.

        Parameters
        ----------
        names
            The names that the cell reads.
        collector
            Pickles the notebook's values.
        state
            What the ranks have.
        ranks
            The ranks that run the cell.
        cell
            What is known of the cell's names.
        forced
            Names that are included even if the ranks have bound them themselves.
        is_all
            Whether these are all names that the cell reads, and not the rest of them.

        Raises
        ------
        UsageError
            When a value cannot be pickled.
        """

        def skip(name: str, value: Any) -> bool:
            return name not in forced and all(
                state.has_rebound(rank, name, value) for rank in ranks
            )

        found = collector.collect(names, skip)
        self._deferred_reads.update(
            cell.all_deferred_reads, *(item.pickled.needs for item in found)
        )
        if is_all:
            found += self._perhaps_changed(found, collector, state, ranks, skip)
        found += self._attributes(found, collector, cell, skip)
        found = [*found, *self._process_items.find(self.shares_files)]
        if self.shares_files:
            return found
        # Also modules that earlier cells have imported: they may have been edited since.
        self._modules.update(cell.modules, *(item.pickled.modules for item in found))
        return [*found, *collector.modules(self._modules)]

    def _attributes(
        self,
        found: Sequence[NamespaceItem],
        collector: ItemCollector,
        cell: CellNames,
        skip: Callable[[str, Any], bool],
    ) -> list[NamespaceItem]:
        """Return the items of attributes of modules that a cell needs.

        These are in packages that it uses, are objects that it needs under another name, or have
        been collected of the notebook by any module of the user's, if it uses one.
        """
        named = {item.key: item.value for item in found if item.is_name}
        used = cell.modules.union(*(item.pickled.modules for item in found))
        packages = {module_attributes.package(module) for module in used}
        module_attributes.note_shared(named)
        collected = module_attributes.note_collected(packages)
        values = module_attributes.values()
        collector.namespace = {**collector.namespace, **values} if values else collector.namespace
        objects = {id(value) for value in named.values()}
        more: list[NamespaceItem] = []
        for name, value in values.items():
            is_used = module_attributes.package(name) in packages or name in collected
            if is_used or id(value) in objects:
                with suppress(UsageError):  # the cell does not name it
                    more += collector.collect([name], skip)
        return more

    def _perhaps_changed(
        self,
        found: Sequence[NamespaceItem],
        collector: ItemCollector,
        state: StateAtTurn,
        ranks: Sequence[int],
        skip: Callable[[str, Any], bool],
    ) -> list[NamespaceItem]:
        """Return what else ranks need where a name that the cell reads is theirs.

        Their value may have methods that look up names of the notebook. It has assigned these, or
        may have changed what configures the functions. That is compared in no time, without what
        its methods use in turn; larger values would be pickled for any cell with a name of theirs.
        """
        namespace = collector.namespace
        if not any(self._is_unknown(name, namespace, state, ranks) for name in collector.visited):
            return []
        assigned: set[str] = set()
        assigned.update(*(state.assigned_since(rank, self._deferred_reads) for rank in ranks))
        settings = {
            name
            for name in self._deferred_reads & namespace.keys()
            if holds_settings(namespace[name]) and not skip(name, namespace[name])
            if any(state.has_former(rank, name) for rank in ranks)
        }
        more: list[NamespaceItem] = []
        for name in dict.fromkeys([*sorted(settings), *sorted(assigned)]):
            with suppress(UsageError):  # it may not be needed at all
                if name in assigned:
                    more += collector.collect([name], skip)
                else:
                    more += [*collector.with_classes(name)]
        return [item for item in dict.fromkeys(more) if item not in found]

    def forget(self, name: str) -> None:
        """Forget a function that ranks have defined, as the notebook has assigned its name."""
        self._remote_reads.pop(name, None)

    def _is_unknown(
        self, name: str, namespace: Mapping[str, Any], state: StateAtTurn, ranks: Sequence[int]
    ) -> bool:
        """Return whether a name may have a value on ranks that the notebook does not know."""
        if name not in namespace:
            return name not in self._imported and not hasattr(builtins, name)
        return any(state.has_rebound(rank, name, namespace[name]) for rank in ranks)
