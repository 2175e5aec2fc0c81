"""Containers of a rank that are changed as those of the notebook were changed."""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any

from jupyter_sky.analysis.labels import EVERYTHING, attribute_label, item_label
from jupyter_sky.node.rank.namespace.takeover import versions
from jupyter_sky.serialization.changes.container_changes import (
    DICTIONARIES,
    LENGTH,
    LISTS,
    ORDER,
    REST,
    parts_of,
)
from jupyter_sky.serialization.changes.frames import is_frame, set_rest
from jupyter_sky.serialization.object_tokens.kinds import SCALARS
from jupyter_sky.serialization.reducers.cached_properties import cached_properties


def can_take_over(present: Any, received: Any, changes: Collection[str]) -> bool:
    """Return whether a container of a rank can be changed as that of the notebook was changed."""
    if not versions.can_become(present, type(received)):
        return False
    return not is_frame(received) or _fits(present, received, changes)


def take_over(present: Any, received: Any, changes: Collection[str]) -> list[tuple[Any, Any]]:
    """Change a container of a rank as that of the notebook was changed.

    Parameters
    ----------
    present
        The rank's.
    received
        The notebook's.
    changes
        The labels of what differs in it from what the rank was sent or gave.

    Returns
    -------
    list
        Where something of what was received was put: dictionaries and lists, each with a key.
    """
    versions.become(present, type(received))
    if not changes:
        return []
    if is_frame(received):
        _change_frame(present, received, changes)
        return []
    if type(received) in LISTS:
        return _change_list(present, received, changes)

    def is_changed(name: str | None) -> bool:
        return name in changes or EVERYTHING in changes

    if type(received) is set:
        present -= {each for each in present - received if is_changed(item_label(each))}
        present |= {each for each in received if is_changed(item_label(each))}
        return []
    is_object = type(received) not in DICTIONARIES
    own, others = (vars(present), vars(received)) if is_object else (present, received)
    kept = cached_properties(type(received)) if is_object else ()
    label = attribute_label if is_object else item_label
    removed = [key for key in own if key not in others and is_changed(label(key))]
    for key in removed:
        if key not in kept:
            del own[key]
    changed = [key for key in others if is_changed(label(key)) and key not in kept]
    for key in changed:  # a Counter would add what it is updated with
        own[key] = others[key]
    if ORDER in changes and own.keys() == others.keys():
        for key in others:
            own[key] = own.pop(key)
    if type(received) is defaultdict and is_changed(REST):
        factory: Any = received.default_factory
        is_its_own = getattr(factory, "__self__", None) is received  # as of `d.__len__`
        present.default_factory = getattr(present, factory.__name__) if is_its_own else factory
    return [(own, key) for key in changed]


def unchanged(received: Any, changes: Collection[str]) -> dict[str, Any]:
    """Return the parts of a container of the notebook that are as they were, but for scalars."""
    if EVERYTHING in changes or is_frame(received):
        return {}  # what is in columns is copied
    parts = parts_of(received) or {}
    return {
        name: part
        for name, part in parts.items()
        if name not in changes and type(part) not in SCALARS
    }


def _change_list(
    own: list[Any] | deque[Any], received: list[Any] | deque[Any], changes: Collection[str]
) -> list[Any]:
    others = [*received]
    lengths = [each.removeprefix(LENGTH) for each in changes if each.startswith(LENGTH)]
    former = int(lengths[0]) if lengths else len(others)
    changed = [index for index in range(min(former, len(others))) if f"[{index}]" in changes]
    is_other = len(own) != former
    is_unclear = is_other and changed and (lengths or changed[-1] >= len(own))
    if EVERYTHING in changes or len(others) < former or is_unclear:
        own.clear()
        own.extend(others)
        return [(own, index) for index in range(len(own))]
    for index in changed:
        own[index] = others[index]
    first = len(own)
    own.extend(others[former:])
    gone = first + len(others[former:]) - len(own)  # at the beginning of a deque that was full
    return [
        (own, index - gone) for index in [*changed, *range(first, len(own) + gone)] if index >= gone
    ]


def _fits(present: Any, received: Any, changes: Collection[str]) -> bool:
    """Return whether columns of the notebook's frame fit into that of a rank."""
    same = is_frame(present) and present.index.equals(received.index)
    return same and EVERYTHING not in changes


def _change_frame(present: Any, received: Any, changes: Collection[str]) -> None:
    """Change the columns of a rank's frame as those of the notebook's were changed."""
    with warnings.catch_warnings(action="ignore"):  # what they say of the user's code is known
        for name in [*present.columns]:
            if item_label(name) in changes and name not in received.columns:
                del present[name]
        for name in received.columns:
            if item_label(name) in changes:
                present[name] = received[name]
        if {*present.columns} == {*received.columns}:
            for position, name in enumerate(received.columns):
                if present.columns[position] != name:
                    present.insert(position, name, present.pop(name))
        if REST in changes:
            set_rest(present, received)
