"""Finds the objects of a process that are of some classes, whoever refers to them.

The list of all objects has tuples in it that are still being made, as by ``tuple(each for …)`` in
another thread, and Python refuses to go on with one that something refers to ("bad argument to
internal function"). So there is no such list while another thread can get its turn: from the call
that makes it to the one that has gone through it, everything is one call into C. It tells which
classes there are instances of. These refer to their classes, and are found by that.
"""

from __future__ import annotations

import gc
from collections.abc import Collection
from itertools import chain, compress
from typing import Any

_ON_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE


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
    everything = chain.from_iterable(
        map(gc.get_objects, (None,))
    )  # called where it is gone through
    of_instances = set(map(id, map(type, everything)))
    there = {each for each in types if id(each) in of_instances}
    referring = [each for each in there if each.__flags__ & _ON_HEAP]
    found = gc.get_referrers(*referring) if referring else []
    found = [each for each in found if type(each) in there]
    return found + _of_pythons_own(there.difference(referring))


def _of_pythons_own(types: Collection[type]) -> list[Any]:
    """Return the instances of classes of Python's own, as functions, which do not refer to them."""
    if not types:
        return []
    objects = gc.get_objects()
    try:
        return list(compress(objects, map(types.__contains__, map(type, objects))))
    finally:
        objects.clear()
