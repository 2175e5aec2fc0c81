"""Pickles the notebook's values that a cell needs, and what these need in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.namespace.items.item import CLASS_PREFIX, MODULE_PREFIX, NamespaceItem
from jupyter_sky.cluster.namespace.items.predefined import is_predefined
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.module_reference import ModuleReference, imported, reached_submodules
from jupyter_sky.serialization.user_modules import source_trees


class ItemCollector:
    """Pickles the notebook's values that a cell needs, each once.

    Parameters
    ----------
    namespace
        The notebook's namespace.
    cell
        The cell that needs the values, if one does.
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
        cell: CellNames | None = None,
        remote_reads: Mapping[str, frozenset[str]] = MappingProxyType({}),
        submodules: dict[str, set[str]] | None = None,
    ) -> None:
        self.namespace = namespace
        self._cell = cell
        self._remote_reads = remote_reads
        self._submodules = {} if submodules is None else submodules
        self.visited: set[str] = set()
        self._items: dict[str, NamespaceItem] = {}
        self._digests = blobs.MemoryDigests()

    def collect(
        self, names: Iterable[str], skip: Callable[[str, Any], bool]
    ) -> list[NamespaceItem]:
        """Return the items of names, and of all names that functions and classes among them use.

        What an object's class uses comes before the object: to load it may run the class's code.

        Parameters
        ----------
        names
            The names to begin with; those that the notebook does not have are passed over.
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
                items[name] = list(self.with_classes(name, user))
                needs.update(*(item.pickled.needs for item in items[name]))
            waiting.extend((each, name) for each in sorted(needs - items.keys())[::-1])
        self.visited |= items.keys()
        return list(found.values())

    def take(self, items: Iterable[NamespaceItem]) -> None:
        """Take items of names that were made before, and not what the names have now."""
        self._items.update({item.key: item for item in items})
        self.namespace = {**self.namespace, **{item.key: item.value for item in items}}

    def forget_large(self) -> None:
        """Forget values whose pickles refer to the user's memory, which may have changed."""
        self._items = {key: item for key, item in self._items.items() if not item.packed[1]}
        self._digests.clear()

    def with_classes(self, name: str, used_by: str | None = None) -> Iterator[NamespaceItem]:
        """Yield the item of a name, and those of the classes that it needs."""
        item = self.item(name, used_by)
        yield item
        classes = dict(item.pickled.classes)
        seen = set(classes)
        while classes:
            identity, kind = classes.popitem()
            item = self.class_item(CLASS_PREFIX + identity, kind)
            needed = item.pickled.classes
            classes.update({each: needed[each] for each in needed.keys() - seen})
            seen.update(needed)
            yield item

    def class_item(self, key: str, kind: type) -> NamespaceItem:
        """Return the item of a class, which has this key."""
        if key not in self._items:
            self._items[key] = NamespaceItem(key, kind, self._digests)
        return self._items[key]

    def item(self, name: str, used_by: str | None = None) -> NamespaceItem:
        """Return the item of a name."""
        if name not in self._items:
            value = _imported(name, self.namespace[name])
            if isinstance(value, ModuleType) and self._cell:
                reached = self._submodules.setdefault(value.__name__, set())
                reached |= reached_submodules(value, self._cell.attributes)
                value = ModuleReference(value, reached)
            known = self._items.values() if ":" in name else ()
            same = next((each for each in known if each.value is value), None)
            # Dozens of modules may have one object, which is pickled once.
            made = same.under(name) if same else NamespaceItem(name, value, self._digests, used_by)
            made.identity = id(self.namespace[name])
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
