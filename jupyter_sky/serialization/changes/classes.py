"""Gives a class of the notebook the attributes that it has on a rank, while it stays the class.

Values that come back leave the classes of the notebook as they are, since each rank may have
changed them otherwise. A class that is itself asked for comes back as any other object does.
"""

from __future__ import annotations

from enum import EnumMeta
from types import FunctionType
from typing import Any

from jupyter_sky.serialization.changes import in_place
from jupyter_sky.serialization.pickler import fill_new_class


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
