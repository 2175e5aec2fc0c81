"""Gives a class the attributes that it has on the other side, while it stays the class.

Values that come back leave the classes of the notebook as they are, since each rank may have
changed them otherwise. A class that is itself asked for comes back as any other object does.

A class that ranks are sent once more is not simply filled again there: they may have changed its
data, like the best score so far (see `container_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import EnumMeta
from types import FunctionType
from typing import Any

from jupyter_sky.serialization.changes import in_place
from jupyter_sky.serialization.pickler import class_of, fill_class, fill_new_class, held_back


def refill(kind: type, state: Any) -> None:
    """Change a class as it was changed on a rank, or fill it if the notebook did not have it.

    Parameters
    ----------
    kind
        The class.
    state
        Its attributes on the rank, as cloudpickle has them.
    """
    if fill_new_class(kind, state) or isinstance(kind, EnumMeta):
        return
    attributes = state[0]
    here = {name for name, value in vars(kind).items() if _is_users(name, value)}
    for name in here - attributes.keys():
        type.__delattr__(kind, name)
    for name, there in attributes.items():
        if not _is_users(name, there):
            continue
        value = in_place.taken_over(vars(kind)[name], there) if name in here else there
        if name not in here or value is not vars(kind)[name]:
            type.__setattr__(kind, name, value)


def _is_users(name: str, value: object) -> bool:
    """Return whether an attribute is one that a cell may have set, and not one of Python's own."""
    if name.startswith("__"):
        return isinstance(value, FunctionType)
    # Slots and the registry of an abstract class are not sent as they are.
    return name != "_abc_impl" and type(value).__name__ != "member_descriptor"


def has_data(value: Any) -> bool:
    """Return whether a value is a class of the notebook whose data can be changed one by one."""
    return (
        isinstance(value, type)
        and value.__module__ == "__main__"
        and not isinstance(value, EnumMeta)
    )


def data_in(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a class's attributes that are data of the user's, and no methods."""
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("__") and name != "_abc_impl" and not hasattr(type(value), "__get__")
    }


@contextmanager
def not_filled(identities: Iterable[str]) -> Iterator[dict[type, Any]]:
    """Have classes that are here stay as they are while they are loaded once more.

    Parameters
    ----------
    identities
        The identities of the classes.

    Yields
    ------
    dict
        The attributes with which each would have been filled, as cloudpickle has them; ``None`` as
        long as it is not loaded.
    """
    states: dict[type, Any] = {kind: None for each in identities if (kind := class_of(each))}
    before = held_back.set(states)
    try:
        yield states
    finally:
        held_back.reset(before)


def fill(kind: type, data: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Fill a class that is here.

    Parameters
    ----------
    kind
        The class.
    data
        Its data. What else there is now is removed.
    others
        Other attributes to set, as cloudpickle has them.
    """
    here = data_in(vars(kind))
    for name in here.keys() - data.keys():
        type.__delattr__(kind, name)
    changed = {
        name: each for name, each in data.items() if name not in here or here[name] is not each
    }
    fill_class(kind, ({**others, **changed}, {}))
