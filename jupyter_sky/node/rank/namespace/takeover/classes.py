"""Classes of a rank whose data is changed as that of the notebook's classes was changed.

``CFG.lr = 0.1`` in the notebook leaves ``CFG.best`` what ranks have made of it, as for an object.
Methods are those of the notebook.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from jupyter_sky.node.rank.namespace.takeover.takeover import Takeover
from jupyter_sky.serialization.changes.classes import data_in, fill
from jupyter_sky.serialization.object_tokens.received import received_objects


def take_over_data(
    kinds: Mapping[str, type],
    states: Mapping[type, Any],
    changes: Mapping[str, Collection[str]],
) -> None:
    """Change classes of a rank, and fill them.

    Parameters
    ----------
    kinds
        The classes that were received, by key.
    states
        The attributes of those that are not filled yet, as `not_filled` yields them.
    changes
        What differs in the notebook's classes, and in the containers in them, from what the rank
        was sent or gave, as `changes_of` describes it.
    """
    # Data is changed like the attributes of an object, for which a namespace stands.
    bound: dict[str, Any] = {}
    for key, kind in kinds.items():
        held = states[kind][0] if states.get(kind) else {}
        data = data_in(held or vars(kind))
        bound[key] = SimpleNamespace(**data)
        # Methods are bound as well, since they may refer to data that stays.
        bound[f"{key} others"] = {name: each for name, each in held.items() if name not in data}
    in_containers = {key: each for key, each in changes.items() if key not in kinds}
    in_classes = {}
    for number, key in enumerate(key for key in changes if key in kinds):
        token = -1 - number  # of no object
        present = SimpleNamespace(**data_in(vars(kinds[key])))
        received_objects.stand_in(token, bound[key], present)
        in_classes[f"{key} {token}"] = changes[key]
    Takeover(bound, bound.get).apply({**in_classes, **in_containers})
    for key, kind in kinds.items():
        fill(kind, vars(bound[key]), bound[f"{key} others"])
