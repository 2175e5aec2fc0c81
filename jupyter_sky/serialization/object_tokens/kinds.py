"""Which objects matter as such, so that they are kept track of, and how they can be referred to."""

from __future__ import annotations

import enum
import types
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MemoEntries = Mapping[int, tuple[int, Any]]
"""Objects by identity, each with its index in the memo of a pickle."""

MAX_OBJECTS = 100_000
"""Objects in a value above which it is bulk data, and none of them gets a token."""

_MAX_PLAIN = 1000

_CONTAINERS = (dict, list, set, bytearray, types.CellType)
SCALARS = (bool, int, float, complex, str, bytes, type(None))
_IMMUTABLE = (
    *(*SCALARS, tuple, frozenset, range, slice, enum.Enum, type, types.FunctionType),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.CodeType),
)


def is_mutable(obj: Any) -> bool:
    """Return whether it matters if two names refer to one object or to two equal ones."""
    if isinstance(obj, _CONTAINERS):
        return True
    if isinstance(obj, _IMMUTABLE):
        return False
    kind = type(obj)
    if kind is object or kind.__dictoffset__ or kind.__weakrefoffset__:
        return True  # an object() has nothing but its identity
    return kind.__module__ == "__main__" or kind.__module__.startswith("numpy.random")


def is_referable(obj: Any) -> bool:
    """Return whether an object can be kept track of by a token, wherever it is."""
    return bool(type(obj).__weakrefoffset__) or is_plain(obj)


def has_attributes_of_user(obj: Any) -> bool:
    """Return whether the user says what attributes an object has: in a class, or one by one."""
    is_users = type(obj).__module__ == "__main__" or isinstance(
        obj, types.SimpleNamespace | Namespace
    )
    return is_users and hasattr(obj, "__dict__")


def holds_settings(obj: Any) -> bool:
    """Return whether an object holds a few numbers and texts, as what configures a training.

    So may a class of the user's.
    """
    if isinstance(obj, type):
        own = {name: value for name, value in vars(obj).items() if not name.startswith("__")}
        return obj.__module__ == "__main__" and is_plain(own)
    with suppress(Exception):  # whatever its own methods do
        return is_plain(vars(obj) if has_attributes_of_user(obj) else obj)
    return False


def is_plain(obj: Any) -> bool:
    """Return whether it is a small container of nothing but numbers and texts, or an `object()`."""
    if type(obj) is object:
        return True
    if not isinstance(obj, (dict, list, set)):
        return False
    left = _MAX_PLAIN
    waiting: list[Any] = [obj]
    while waiting:
        container = waiting.pop()
        parts = [*container, *container.values()] if isinstance(container, dict) else container
        left -= len(parts)
        if left < 0:
            return False
        for part in parts:
            if isinstance(part, (dict, list, set, tuple)):
                waiting.append(part)
            elif not isinstance(part, SCALARS):
                return False
    return True
