"""Objects without the values of their cached properties, which they can compute again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

_computed: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()
"""The cached properties of classes."""


def cached_properties(kind: type) -> frozenset[str]:
    """Return the names of the `functools.cached_property` attributes of a class."""
    computed = _computed.get(kind)
    if computed is None:
        attributes = [item for base in kind.__mro__[:-1] for item in vars(base).items()]
        found = {name for name, value in attributes if isinstance(value, functools.cached_property)}
        computed = _computed[kind] = frozenset(found)
    return computed


def without_cached_properties(obj: Any, omitted: list[Mapping[str, object]]) -> Any:
    """Reduce an object without the values of its `functools.cached_property` attributes.

    Parameters
    ----------
    obj
        The object.
    omitted
        What tells these values from later ones is added here, by attribute.
    """
    computed = cached_properties(type(obj))
    if not computed:
        return NotImplemented
    match obj.__reduce_ex__(5):
        case (make, arguments, dict() as state, *rest):
            kept = {name: value for name, value in state.items() if name not in computed}
            caches = {name: value for name, value in state.items() if name in computed}
            plain = (type(None), bool, int, float, str)
            omitted.append(
                {name: each if type(each) in plain else id(each) for name, each in caches.items()}
            )
            return make, arguments, kept or None, *rest
    return NotImplemented
