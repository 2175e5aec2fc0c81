"""Objects of Python's own: of `argparse` and other modules, and cells of closures.

Each function returns what ``__reduce__`` should, or ``NotImplemented`` to leave it to pickle.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pkgutil
import types
import weakref
from collections.abc import Callable
from typing import Any


def reduce_argparse(obj: Any) -> Any:
    """Reduce an object of `argparse`, which tells ``SUPPRESS`` by identity, although it is text."""
    if not any(each is argparse.SUPPRESS for each in vars(obj).values()):
        return NotImplemented
    make, arguments, state, *rest = obj.__reduce_ex__(5)
    state = {
        name: _Suppress() if each is argparse.SUPPRESS else each for name, each in state.items()
    }
    return make, arguments, state, *rest


class _Suppress:
    """Is pickled in place of `argparse.SUPPRESS`, and loaded as the receiver's."""

    def __reduce__(self) -> Any:
        return pkgutil.resolve_name, ("argparse:SUPPRESS",)


def reduce_dataclasses(obj: Any) -> Any:
    """Reduce an object of `dataclasses`: what it tells by identity, like ``MISSING``, by name."""
    name = next((name for name, each in vars(dataclasses).items() if each is obj), None)
    return NotImplemented if name is None else (pkgutil.resolve_name, (f"dataclasses:{name}",))


def reduce_functools(obj: Any) -> Any:
    """Reduce an object of `functools`."""
    if isinstance(obj, functools.partial):
        return with_dict(obj)
    if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
        # A cached function of a module is pickled by reference. The cache's content is not pickled.
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    if isinstance(obj, functools.cached_property):
        return _cached_property, (obj.func, obj.attrname)  # in Python 3.11, it has a lock
    return NotImplemented


def with_dict(obj: Any) -> Any:
    """Leave it to pickle, with a ``__dict__`` that is created on first access and pickled then."""
    _ = obj.__dict__
    return NotImplemented


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def reduce_weakref(obj: Any) -> Any:
    """Reduce an object of `weakref`."""
    if type(obj) in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
        return type(obj), (), None, None, iter(list(obj.items()))
    if type(obj) in (weakref.ReferenceType, weakref.WeakMethod):
        # What nothing else refers to at the receiver is gone there, as it would be here.
        target = obj()
        return (_dead_reference, ()) if target is None else (type(obj), (target,))
    return NotImplemented


def _dead_reference() -> weakref.ref[Any]:
    return weakref.ref(type("Gone", (), {})())


def reduce_cell(cell: types.CellType) -> Any:
    """Reduce a closure's cell such that functions that share it still do when loaded."""
    try:
        content = cell.cell_contents
    except ValueError:
        return types.CellType, ()
    # The content is the state, which is set once the cell is in the memo, since it may refer to the
    # function that the cell belongs to.
    return types.CellType, (), (content,), None, None, _fill


def _fill(cell: types.CellType, content: tuple[Any]) -> None:
    [cell.cell_contents] = content
