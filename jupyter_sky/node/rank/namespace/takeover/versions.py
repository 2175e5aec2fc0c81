"""Objects of a rank that become of the class that the notebook's is of.

After ``importlib.reload``, a class of the notebook's earlier objects cannot be imported any more,
and goes on with its code. On ranks, it is one of its own beside that of the module. What they have
made of such an object, and what refers to it, is as good as before.
"""

from __future__ import annotations

from typing import Any

from jupyter_sky.serialization.pickler import class_identity


def can_become(present: Any, kind: type) -> bool:
    """Return whether an object is of a class, or of another version of it that it can leave."""
    mine = type(present)
    if _is_same(mine, kind):
        return True
    if mine.__module__ == "__main__" or "<locals>" in mine.__qualname__:
        return False  # others may have the same name
    if (mine.__module__, mine.__qualname__) != (kind.__module__, kind.__qualname__):
        return False
    try:
        become(present, kind)
    except TypeError:  # as where one of them has slots
        return False
    become(present, mine)
    return True


def become(present: Any, kind: type) -> None:
    """Have an object be of a class, as `can_become` allows."""
    if not _is_same(type(present), kind):
        object.__setattr__(present, "__class__", kind)  # also if it is frozen


def _is_same(mine: type, kind: type) -> bool:
    """Return whether two classes are one, which a cell may have defined twice without changes."""
    if mine is kind or (mine.__module__, kind.__module__) != ("__main__", "__main__"):
        return mine is kind
    is_named_alike = mine.__qualname__ == kind.__qualname__
    return is_named_alike and class_identity(mine) == class_identity(kind)
