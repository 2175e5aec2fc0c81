"""Attributes of modules on a rank, as the notebook has set them (see `module_attributes`)."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from jupyter_sky.serialization.process.after_import import after_import
from jupyter_sky.serialization.process.module_attributes import (
    AS_IMPORTED,
    Collected,
    module_of,
    place,
)

_waiting: dict[str, Any] = {}  # what is set once its module has been imported
_replaced: dict[str, Any] = {}  # what the modules themselves have
_added: dict[str, Collected] = {}  # what was added to collections of theirs


def get(name: str) -> Any:
    """Return the value of an attribute by its full name; ``None`` if it is not there."""
    with suppress(ImportError, AttributeError):
        return pkgutil.resolve_name(name) if module_of(name) in sys.modules else None
    return None


def put(name: str, value: Any) -> None:
    """Set an attribute by its full name, as soon as its module has been imported.

    Parameters
    ----------
    name
        As `module_attributes.note` returns it.
    value
        Its value.
    """
    _waiting[name] = value
    after_import(module_of(name), _set_waiting)


def _set_waiting(module: ModuleType) -> None:
    for name in [each for each in _waiting if module_of(each) == module.__name__]:
        with suppress(ImportError, AttributeError, KeyError):  # an edited file may lack it
            holder, attribute = place(name)
            value = _waiting.pop(name)
            if isinstance(value, Collected):
                _add(value, vars(holder)[attribute], _added.get(name))
                _added[name] = value
                continue
            if value is AS_IMPORTED:
                value = _replaced.pop(name, vars(holder)[attribute])
            elif attribute in vars(holder):
                _replaced.setdefault(name, vars(holder)[attribute])
            setattr(holder, attribute, value)


@contextmanager
def kept(names: Iterable[str]) -> Iterator[None]:
    """Have attributes keep their values while modules are loaded again, as in the notebook."""
    values = {}
    for name in names:
        with suppress(ImportError, AttributeError, KeyError):
            holder, attribute = place(name)
            values[name] = vars(holder)[attribute]
            # A function that is there would be given the code of the file's.
            delattr(holder, attribute)
    try:
        yield
    finally:
        for name, value in values.items():
            _replaced.pop(name, None)
            put(name, value)


def _add(collected: Collected, there: Any, former: Collected | None) -> None:
    """Add something to a collection, in place of what was added before."""
    if isinstance(collected.items, dict):
        there.update(collected.items)
        return
    gone = former.items if former else ()
    others = [each for each in there if not any(each is other for other in gone)]
    there.clear()
    (there.extend if isinstance(there, list) else there.update)([*others, *collected.items])
