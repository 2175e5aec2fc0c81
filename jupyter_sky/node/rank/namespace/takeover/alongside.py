"""What a rank has in the places of what another rank has given to the notebook.

A cell makes a value on every rank, and only the head gives its own to the notebook (``--out``). It
alone knows the objects in it by their tokens. When the notebook changes it, the other ranks find
what they have of it by its place in the value of the same name.
"""

from __future__ import annotations

from typing import Any

from jupyter_sky.node.rank.namespace.takeover import versions
from jupyter_sky.serialization.changes.container_changes import has_parts, parts_of
from jupyter_sky.serialization.models.torch_kinds import is_any


def alongside(received: Any, present: Any) -> dict[int, Any]:
    """Return what is here in the places of models and containers, by the identity of these.

    Parameters
    ----------
    received
        The notebook's value of a name.
    present
        The rank's.
    """
    found: dict[int, Any] = {}
    waiting = [(received, present)]
    while waiting:
        theirs, mine = waiting.pop()
        if id(theirs) in found or theirs is mine:
            continue
        if is_any(theirs) and is_any(mine):
            found[id(theirs)] = mine
        elif type(theirs) is tuple and type(mine) is tuple:
            waiting += zip(theirs, mine, strict=False)
        elif has_parts(theirs) and has_parts(mine) and versions.can_become(mine, type(theirs)):
            found[id(theirs)] = mine
            parts = parts_of(mine) or {}
            others = (parts_of(theirs) or {}).items()
            waiting += [(part, parts[name]) for name, part in others if name in parts]
    return found
