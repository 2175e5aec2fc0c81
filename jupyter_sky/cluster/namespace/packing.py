"""What names stand for, pickled, and how they are put together into what is sent."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.cell_sources import shell_of
from jupyter_sky.serialization.object_tokens import Departures, Places, Tokens
from jupyter_sky.serialization.pickling import Pickled
from jupyter_sky.serialization.user_modules import Place, trees
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.messages import Packed

_CLASS, _MODULE, _PLACE = "class ", "module ", "place "


class Item:
    """One thing that is sent when it changed: a value under a name, a class, a module.

    Attributes
    ----------
    key
        The name that it is bound to, or what no name can be: ``"class "`` and its identity,
        ``"module "`` and its name, ``"place "``.
    """

    def __init__(
        self, key: str, value: Any, digests: dict[tuple[int, int], str], used_by: str | None = None
    ) -> None:
        self.key = key
        self.value = value
        self._digests = digests
        name = value.__qualname__ if self.is_class else key
        described = {key.removeprefix(_CLASS)} if self.is_class else ()
        self.pickled = pickling.dump(value, name, describe=described, bare=True, used_by=used_by)

    @property
    def is_name(self) -> bool:
        """Whether it is bound to a name."""
        return " " not in self.key

    @property
    def is_class(self) -> bool:
        """Whether it is a class that objects need."""
        return self.key.startswith(_CLASS)

    @property
    def kind(self) -> str:
        """What the receiver does with it: ``"name"``, ``"class"`` or ``"source"``."""
        return "name" if self.is_name else "class" if self.is_class else "source"

    @cached_property
    def packed(self) -> tuple[Packed, dict[str, memoryview]]:
        """What is hashed: the value, with the classes in it only named."""
        return blobs.pack(self.pickled, self._digests)

    @cached_property
    def digest(self) -> str:
        """The digest of its content."""
        return blobs.content(self.packed[0])

    def size(self, without: Collection[str]) -> int:
        """Return the bytes in all, without those blobs."""
        message, parts = self.packed
        inline = [
            part for part in (message["stream"], *message["buffers"]) if isinstance(part, bytes)
        ]
        blobs = [part.nbytes for key, part in parts.items() if key not in without]
        return sum(map(len, inline)) + sum(blobs)

    @property
    def whole(self) -> Pickled:
        """What can be loaded, where the classes in it are known."""
        return pickling.dump(self.value, describe=()) if self.pickled.left_out else self.pickled


class Items:
    """Everything that a cell needs of the notebook, and what is connected with it.

    Parameters
    ----------
    namespace
        The notebook's.
    bodies
        What functions that are defined on ranks look up, by their names.
    submodules
        For the name of a module, those of its submodules that cells reach through it.

    Attributes
    ----------
    visited
        The names that were looked for, also those that the notebook does not have.
    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        bodies: Mapping[str, frozenset[str]],
        submodules: dict[str, set[str]],
    ) -> None:
        self.namespace = namespace
        self._bodies = bodies
        self._submodules = submodules
        self.visited: set[str] = set()
        self._items: dict[str, Item] = {}
        self._digests: dict[tuple[int, int], str] = {}

    def find(
        self, names: Iterable[str], cell: CellNames, skip: Callable[[str, Any], bool]
    ) -> list[Item]:
        """Pickle names, what functions and classes among them use, and so on.

        Parameters
        ----------
        names
            What to begin with; names that the notebook does not have are passed over.
        cell
            The cell that needs them.
        skip
            Says for a name and its value that the ranks have something else in its place.
        """
        found: dict[str, Item] = {}
        waiting: list[tuple[str, str | None]] = [(name, None) for name in sorted(names)[::-1]]
        while waiting:
            name, user = waiting.pop()
            if name in found or is_given(name, self.namespace):
                continue
            self.visited.add(name)
            needs = set(self._bodies.get(name, ()))
            if name in self.namespace and not skip(name, self.namespace[name]):
                for part in self.parts(name, cell, user):
                    found.setdefault(part.key, part)
                    needs |= part.pickled.needs
            waiting.extend((each, name) for each in sorted(needs)[::-1])
        return list(found.values())

    def parts(
        self, name: str, cell: CellNames | None = None, used_by: str | None = None
    ) -> Iterator[Item]:
        """Yield what a name stands for, and the classes that this needs."""
        item = self.item(name, cell, used_by)
        yield item
        classes = dict(item.pickled.classes)
        seen = set(classes)
        while classes:
            identity, kind = classes.popitem()
            key = _CLASS + identity
            if key not in self._items:
                self._items[key] = Item(key, kind, self._digests)
            needed = self._items[key].pickled.classes
            classes.update({each: needed[each] for each in needed.keys() - seen})
            seen.update(needed)
            yield self._items[key]

    def item(self, name: str, cell: CellNames | None = None, used_by: str | None = None) -> Item:
        """Return what a name stands for."""
        if name not in self._items:
            value = self.namespace[name]
            if isinstance(value, ModuleType) and cell:
                value = _Module(value, self._reached(value, cell))
            self._items[name] = Item(name, value, self._digests, used_by)
        return self._items[name]

    def trees(self, modules: Iterable[str]) -> list[Item]:
        """Return the person's own among these modules, for ranks that do not see their files."""
        return [Item(_MODULE + tree.name, tree, self._digests) for tree in trees(modules)]

    def _reached(self, module: ModuleType, cell: CellNames) -> frozenset[str]:
        """Return the submodules that are imported here, and that cells reach through a module."""
        prefix = f"{module.__name__}."
        reached = self._submodules.setdefault(module.__name__, set())
        for name in list(sys.modules):
            if name.startswith(prefix) and cell.attributes.issuperset(name.split(".")[1:]):
                reached.add(name)
        return frozenset(reached)


class Standpoint:
    """Where the notebook stands, for ranks that see its files; it seldom moves."""

    def __init__(self) -> None:
        self._item: Item | None = None

    @property
    def item(self) -> Item:
        """Where it stands now."""
        here = Place.here()
        if self._item is None or self._item.value != here:
            self._item = Item(_PLACE, here, {})
        return self._item


class _Module:
    """A module, with the submodules that the notebook has imported of it."""

    def __init__(self, module: ModuleType, submodules: frozenset[str]) -> None:
        self._module = module
        self._submodules = submodules

    def __reduce__(self) -> Any:
        return _first, (self._module, *(sys.modules[name] for name in sorted(self._submodules)))


def _first(module: ModuleType, *submodules: ModuleType) -> ModuleType:
    return module


def connected(items: Sequence[Item]) -> list[list[Item]]:
    """Return names in groups: those that share a mutable object are in one."""
    group = {item.key: [item] for item in items}
    owner: dict[int, str] = {}
    for item in items:
        for identity in item.pickled.shared:
            first = owner.setdefault(identity, item.key)
            if group[first] is not group[item.key]:
                merged = [*group[first], *group[item.key]]
                group.update({each.key: merged for each in merged})
    return list({id(members): members for members in group.values()}.values())


@dataclass(frozen=True)
class Group:
    """Names that are sent as one, so that they share what they share here.

    Attributes
    ----------
    message
        How it goes over the wire, but for the ranks that it is for.
    blobs
        Its large parts.
    shared, tokens
        The objects in it that what comes later may refer to, and their tokens.
    """

    message: Message
    blobs: Mapping[str, memoryview]
    shared: Places
    tokens: Tokens


def pack_together(
    items: Sequence[Item], departures: Departures, links: Mapping[int, int] | None = None
) -> Group:
    """Return names, classes, or one module as one group.

    Parameters
    ----------
    items
        What is in it.
    departures
        What gives tokens to the objects in it.
    links
        The tokens of objects that the receivers have, by identity.
    """
    kind = items[0].kind
    values = [item.value for item in items]
    if links:
        pickled = pickling.link(values, links)
    elif len(items) == 1 and kind != "class":
        pickled = items[0].whole
    else:
        described = {item.key.removeprefix(_CLASS) for item in items} if kind == "class" else ()
        pickled = pickling.dump(values, names=[item.key for item in items], describe=described)
    shared = pickled.shared if kind == "name" else {}
    tokens = departures.prepare(shared)
    whole = pickling.enclose(pickled, values, tokens) if links else pickled
    packed, parts = blobs.pack(whole, items[0]._digests)
    message = {
        "shipment": uuid.uuid4().hex[:12],
        "names": [item.key for item in items],
        "digests": {item.key: item.digest for item in items},
        "kind": kind,
        "packed": packed,
        "together": len(items) > 1 or bool(links) or kind == "class",
        "tokens": None if links or not shared else [tokens.first, dict(tokens.known)],
        "cells": dict(pickled.cells),
    }
    return Group(message, parts, shared, tokens)


_BY_PYTHON = frozenset(
    {"__builtins__", "__builtin__", "__name__", "__doc__", "__loader__", "__spec__", "get_ipython"}
)
_BY_IPYTHON = frozenset(
    {"In", "Out", "exit", "quit", "open", "display"}
    | {"_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh"}
)


def is_given(name: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a name holds what IPython or Python has put there, not the person.

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
    # IPython tells in the same way which names `%who` does not show. A script has no shell.
    hidden: Mapping[str, Any] = getattr(shell_of(namespace), "user_ns_hidden", {})
    return name in hidden and hidden[name] is namespace[name]
