"""Dependencies: what a cell on ranks needs from the notebook, directly and indirectly."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.packing import CLASS_PREFIX, MODULE_PREFIX, NamespaceItem
from jupyter_sky.cluster.namespace.process_items import ProcessItems
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.cell_sources import shell_of
from jupyter_sky.serialization.module_reference import (
    ModuleReference,
    imported,
    reached_submodules,
)
from jupyter_sky.serialization.process import module_attributes
from jupyter_sky.serialization.user_modules import source_trees


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
    asked_variables
        Environment variables that cells asked for once the cluster was there, with their values.
    """

    def __init__(self, remote_state: RemoteState) -> None:
        self.shares_files = True
        self._remote_state = remote_state
        self.asked_variables: dict[str, str] = {}
        self._process_items = ProcessItems(self.asked_variables)
        # The names that functions look up which earlier cells have defined on ranks: first by the
        # function's name, then of all functions, also methods and those without a name.
        self._remote_reads: dict[str, frozenset[str]] = {}
        self._deferred_reads: set[str] = set()
        self._imported: set[str] = set()
        self._submodules: dict[str, set[str]] = {}
        self._modules: set[str] = set()

    def collector(self, namespace: Mapping[str, Any]) -> ItemCollector:
        """Return a collector, which pickles the notebook's values for one update."""
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
        """Return what ranks need for a cell, also what they have already.

        Parameters
        ----------
        names
            The names that the cell reads.
        collector
            Pickles the notebook's values.
        ranks
            The ranks that run the cell.
        cell
            What is known of the cell's names.
        forced
            Names that are included even if the ranks have bound them themselves.

        Raises
        ------
        UsageError
            When a value cannot be pickled.
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
            # The rank's value may have methods that look up names which the notebook has assigned.
            since = set().union(
                *(state.assigned_since(rank, self._deferred_reads) for rank in ranks)
            )
            for name in sorted(since):
                with suppress(UsageError):  # it may not be needed at all
                    more = collector.collect([name], cell, skip)
                    found += [item for item in more if item not in found]
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
                    more += collector.collect([name], cell, skip)
        return more

    def forget(self, name: str) -> None:
        """Forget a function that ranks have defined, as the notebook has assigned its name."""
        self._remote_reads.pop(name, None)

    def _is_unknown(self, name: str, namespace: Mapping[str, Any], ranks: Sequence[int]) -> bool:
        """Return whether a name may have a value on ranks that the notebook does not know."""
        if name not in namespace:
            return name not in self._imported and not hasattr(builtins, name)
        return any(self._remote_state.has_rebound(rank, name, namespace[name]) for rank in ranks)


class ItemCollector:
    """Pickles the notebook's values that a cell needs, each once.

    Parameters
    ----------
    namespace
        The notebook's namespace.
    remote_reads
        For each function that is defined on ranks, the names that it looks up.
    submodules
        For each module, its submodules that cells reach through it.

    Attributes
    ----------
    namespace
        As above.
    visited
        All names that were needed, also those that the notebook does not have.
    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        remote_reads: Mapping[str, frozenset[str]],
        submodules: dict[str, set[str]],
    ) -> None:
        self.namespace = namespace
        self._remote_reads = remote_reads
        self._submodules = submodules
        self.visited: set[str] = set()
        self._items: dict[str, NamespaceItem] = {}
        self._digests: dict[tuple[int, int], str] = {}

    def collect(
        self, names: Iterable[str], cell: CellNames, skip: Callable[[str, Any], bool]
    ) -> list[NamespaceItem]:
        """Return the items of names, and of all names that functions and classes among them use.

        What an object's class uses comes before the object: to load it may run the class's code.

        Parameters
        ----------
        names
            The names to begin with; those that the notebook does not have are passed over.
        cell
            The cell that needs them.
        skip
            Returns for a name and its value whether it is left out.
        """
        found: dict[str, NamespaceItem] = {}
        items: dict[str, list[NamespaceItem]] = {}
        waiting: list[tuple[str, str | None]] = [(name, None) for name in sorted(names)[::-1]]
        while waiting:
            name, user = waiting[-1]
            if name in items:  # what it needs is there by now
                found.update((item.key, item) for item in items[name] if item.key not in found)
                waiting.pop()
                continue
            if is_predefined(name, self.namespace):
                waiting.pop()
                continue
            needs = set(self._remote_reads.get(name, ()))
            items[name] = []
            if name in self.namespace and not skip(name, self.namespace[name]):
                items[name] = list(self.with_classes(name, cell, user))
                needs.update(*(item.pickled.needs for item in items[name]))
            waiting.extend((each, name) for each in sorted(needs - items.keys())[::-1])
        self.visited |= items.keys()
        return list(found.values())

    def forget_large(self) -> None:
        """Forget values whose pickles refer to the user's memory, which may have changed."""
        self._items = {key: item for key, item in self._items.items() if not item.packed[1]}
        self._digests.clear()

    def with_classes(
        self, name: str, cell: CellNames | None = None, used_by: str | None = None
    ) -> Iterator[NamespaceItem]:
        """Yield the item of a name, and those of the classes that it needs."""
        item = self.item(name, cell, used_by)
        yield item
        classes = dict(item.pickled.classes)
        seen = set(classes)
        while classes:
            identity, kind = classes.popitem()
            key = CLASS_PREFIX + identity
            if key not in self._items:
                self._items[key] = NamespaceItem(key, kind, self._digests)
            needed = self._items[key].pickled.classes
            classes.update({each: needed[each] for each in needed.keys() - seen})
            seen.update(needed)
            yield self._items[key]

    def item(
        self, name: str, cell: CellNames | None = None, used_by: str | None = None
    ) -> NamespaceItem:
        """Return the item of a name."""
        if name not in self._items:
            value = _imported(name, self.namespace[name])
            if isinstance(value, ModuleType) and cell:
                reached = self._submodules.setdefault(value.__name__, set())
                reached |= reached_submodules(value, cell.attributes)
                value = ModuleReference(value, reached)
            known = self._items.values() if ":" in name else ()
            same = next((each for each in known if each.value is value), None)
            # Dozens of modules may have one object, which is pickled once.
            made = same.under(name) if same else NamespaceItem(name, value, self._digests, used_by)
            self._items[name] = made
        return self._items[name]

    def modules(self, names: Iterable[str]) -> list[NamespaceItem]:
        """Return the items of the user's own modules among these, and of those that they import."""
        return [
            NamespaceItem(MODULE_PREFIX + tree.name, tree, self._digests)
            for tree in source_trees(names)
        ]


def _imported(name: str, value: Any) -> Any:
    try:
        return imported(value)
    except Exception as error:  # of the module's own code, too
        raise UsageError(
            f"{name} cannot be sent, as its lazy import fails here: {type(error).__name__}: {error}"
        ) from None


_BY_PYTHON = frozenset(
    {"__builtins__", "__builtin__", "__name__", "__doc__", "__loader__", "__spec__", "get_ipython"}
)
_BY_IPYTHON = frozenset(
    {"In", "Out", "exit", "quit", "open", "display"}
    | {"_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
)


def is_predefined(name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a name has the value that IPython or Python has given it, not the user.

    Parameters
    ----------
    name
        A name of the notebook; it may have been assigned, as ``open`` in ``from gzip import open``.
    namespace
        The notebook's.
    """
    if name in _BY_PYTHON:
        return True
    if name not in _BY_IPYTHON or name not in namespace:
        return False
    # IPython decides in the same way which names `%who` does not show. A script has no shell.
    hidden: Mapping[str, Any] = getattr(shell_of(namespace), "user_ns_hidden", {})
    return name in hidden and hidden[name] is namespace[name]


def of_user(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that the user has given values, with these."""
    return {name: each for name, each in namespace.items() if not is_predefined(name, namespace)}
