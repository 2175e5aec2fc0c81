"""Finds the objects of a process that are of some classes, whoever refers to them.

The list of all objects has tuples in it that are still being made, as by ``tuple(each for …)`` in
another thread, and Python refuses to go on with one that something refers to ("bad argument to
internal function"). So the list is there for as short as possible: no code in Python looks through
it, and it is emptied even where somebody, who looks at what a thread does, has kept the frame.
"""

from __future__ import annotations

import gc
from collections.abc import Collection
from itertools import compress
from typing import Any


def instances(*kinds: tuple[type, ...]) -> list[list[Any]]:
    """Return the instances of each group of classes, without asking them what they are."""
    wanted = [_with_subclasses(classes) for classes in kinds]
    found = _of(set().union(*wanted))
    return [[each for each in found if type(each) in group] for group in wanted]


def _with_subclasses(classes: Collection[type]) -> set[type]:
    """Return classes and all that derive from them, which are few among all classes."""
    found: set[type] = set()
    coming = [*classes]
    while coming:
        if (each := coming.pop()) not in found:
            found.add(each)
            coming += type.__subclasses__(each)
    return found


def _of(types: Collection[type]) -> list[Any]:
    if not types:
        return []
    objects = gc.get_objects()
    try:
        return list(compress(objects, map(types.__contains__, map(type, objects))))
    finally:
        objects.clear()
