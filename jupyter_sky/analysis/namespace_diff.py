"""The difference between a namespace before and after code has run."""

from __future__ import annotations

import datetime
import decimal
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_NUMBERS: frozenset[type] = frozenset((bool, int, float, complex, type(None)))
_SCALARS: tuple[type, ...] = (
    *(*_NUMBERS, str, bytes, range),
    *(datetime.date, datetime.time, datetime.timedelta, decimal.Decimal),
)
_MAX_PARTS = 20
_MAX_BYTES = 1024 * 1024


class NamespaceDiff:
    """Records the identities of a namespace's values, to compare them later.

    It finds names however they were bound: by an assignment, ``from module import *`` or ``%run``.
    An object may have the address of one that is gone, as in ``lr *= 2`` and ``lr *= 5``. So small
    values that cannot change are kept, and others are referred to weakly. The rest, such as lists
    and arrays, is known by its address.

    Parameters
    ----------
    namespace
        The namespace, before the code runs.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        everything = dict(namespace)  # a copy, as in `identities`
        self._before = {name: id(value) for name, value in everything.items()}
        self._weakly, self._kept = _references(everything, _is_small)

    def changed(self) -> set[str]:
        """Return the names that are new or bound to another object than before."""
        before, now = self._before, identities(self._namespace)
        freed = {name for name, value in self._weakly.items() if value() is None}
        # Usually nothing changed. This is called before and after each run, so check that first.
        if before == now and not freed:
            return set()
        changed = {name for name, identity in now.items() if before.get(name) != identity}
        return {name for name in changed | (freed & now.keys()) if _counts(name)}

    def deleted(self) -> set[str]:
        """Return the names that are gone."""
        gone = self._before.keys() - self._namespace.keys()
        return {name for name in gone if _counts(name)} if gone else gone


class LastObjects:
    """Remembers which objects names were bound to, over any time, to find those bound to others.

    Objects are known as in `NamespaceDiff`. Small containers are kept as well, as long as they are
    small and bound: an empty list would often have the address of one that is gone.
    """

    def __init__(self) -> None:
        # Their identities, and what they are referred to with: weakly, or not.
        self._known: dict[str, tuple[int, weakref.ref[Any] | None, Any]] = {}

    def note(self, names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        """Remember what some names are bound to now."""
        for name, (identity, weakly, kept) in self._known.items():
            if kept is not None and (name not in namespace or not _is_kept(kept)):
                self._known[name] = identity, weakly, None
        values = {name: namespace[name] for name in names if name in namespace}
        references, small = _references(values, _is_kept)
        for name, value in values.items():
            self._known[name] = id(value), references.get(name), small.get(name)

    def changed(self, namespace: Mapping[str, Any]) -> set[str]:
        """Return the names that are bound to another object now; not those that are gone."""
        return {
            name
            for name, (identity, weakly, _) in self._known.items()
            if name in namespace
            if id(namespace[name]) != identity or (weakly is not None and weakly() is None)
        }


def identities(namespace: Mapping[str, Any]) -> dict[str, int]:
    """Return the identity of the object that each name is bound to."""
    # A copy, since other threads may bind names meanwhile.
    everything = dict(namespace)
    return dict(zip(everything, map(id, everything.values()), strict=True))


def _references(
    values: Mapping[str, Any], is_kept: Callable[[Any], bool]
) -> tuple[dict[str, weakref.ref[Any]], dict[str, Any]]:
    """Return weak references to values, by name, and those values that are kept instead.

    Parameters
    ----------
    values
        The values, by name.
    is_kept
        Returns whether a value that cannot be referred to weakly is kept.
    """
    weakly: dict[str, weakref.ref[Any]] = {}
    kept: dict[str, Any] = {}
    refused = _not_referred_to()
    for name, value in values.items():
        kind = type(value)
        if not kind.__weakrefoffset__:
            if is_kept(value):
                kept[name] = value
        elif not issubclass(kind, refused):
            weakly[name] = weakref.ref(value)
    return weakly, kept


def _is_small(value: Any) -> bool:
    """Return whether a value takes little memory, and refers to nothing that changes."""
    kind = type(value)
    if kind in _NUMBERS:
        return True
    if kind is tuple:
        return len(value) <= _MAX_PARTS and all(map(_is_small_scalar, value))
    return _is_small_scalar(value)


def _is_kept(value: Any) -> bool:
    if type(value) not in (list, dict):
        return _is_small(value)
    if len(value) > _MAX_PARTS:
        return False
    parts = [*value, *value.values()] if type(value) is dict else list(value)
    return all(map(_is_small_scalar, parts))


def _is_small_scalar(value: Any) -> bool:
    return _is_scalar(type(value)) and sys.getsizeof(value) <= _MAX_BYTES


def _is_scalar(kind: type) -> bool:
    if issubclass(kind, _SCALARS):
        return True
    numpy: Any = sys.modules.get("numpy")
    scalar = getattr(numpy, "generic", None)
    # A row of an array is part of it.
    return scalar is not None and issubclass(kind, scalar) and not issubclass(kind, numpy.void)


def _not_referred_to() -> tuple[type, ...]:
    """Return types of objects that lose abilities while something refers to them weakly.

    NumPy resizes no such array, and torch swaps no such tensor.
    """
    named = (("numpy", "ndarray"), ("torch", "Tensor"))
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in named]
    return tuple(kind for kind in kinds if isinstance(kind, type))


def _counts(name: Any) -> bool:
    """Return whether a key is a name, other than those that IPython numbers by cell (``_i3``).

    There are more of these with every cell, and nobody rebinds them. A key that is not a string, as
    in ``globals()[5] = 1``, cannot be named by code.
    """
    if not isinstance(name, str):
        return False
    return name[:1] != "_" or not name[1:].removeprefix("i").isdecimal()
