"""Sentinels: ``MISSING = object()`` is one object on each side.

They have nothing that could be copied but their identity. So each has a number, by which every
pickle refers to it, be it of a name, a class, a call or its result. One of a module of the user's
is that of the module on the other side.
"""

from __future__ import annotations

import pkgutil
import uuid
from typing import Any

from jupyter_sky.serialization.process import module_attributes

_MOST = 10_000
"""How many are known; they are kept alive. Further ones are copied, as bulk data is."""

# Without a lock, which could be held at the moment when a rank forks.
_objects: dict[str, object] = {}
_numbers: dict[int, str] = {}


def reduce(obj: object) -> Any:
    """Return how an ``object()`` is pickled."""
    number = _numbers.get(id(obj))
    if number is None:
        if len(_objects) >= _MOST:
            return object, ()
        number = next(module_attributes.places({id(obj)}), uuid.uuid4().hex)
        _objects[number] = obj
        number = _numbers.setdefault(id(obj), number)
    return pkgutil.resolve_name if ":" in number else _numbered, (number,)


def _numbered(number: str) -> object:
    if number not in _objects and len(_objects) >= _MOST:
        return object()
    obj = _objects.setdefault(number, object())
    _numbers[id(obj)] = number
    return obj
