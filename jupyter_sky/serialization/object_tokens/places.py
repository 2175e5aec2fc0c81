"""Places: how objects are referred to that do not support weak references, like lists.

A reference to one must not keep it alive: it may hold the user's largest tensors, also in a circle
through itself. So it says where the object is: under a name of the user's, or in another object,
which is referred to in the same way if it does not support weak references either. If something
else is there later, the object counts as gone, unless what was in it tells that it has moved.
"""

from __future__ import annotations

import copyreg
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from jupyter_sky.serialization.object_tokens.kinds import MAX_OBJECTS, SCALARS, is_mutable

Reference = Callable[[], Any]
"""Returns an object, or ``None`` if it is gone."""

_Part = tuple[Callable[[Any, Any], Any], Any, Any]
"""How a part of a holder is found, its key, and the part."""

_slot_names: Any = vars(copyreg)["_slotnames"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place where an object is.

    Attributes
    ----------
    holder
        What it is in.
    find
        Returns what is in the holder under a key.
    key
        The key.
    identity
        The identity of the object.
    part
        Something in the object that nothing else has in its place; ``None`` if there is no such.
    """

    holder: Reference
    find: Callable[[Any, Any], Any]
    key: Any
    identity: int
    part: Reference | None = None

    @property
    def root(self) -> Place | None:
        """The place under a name that it is in; ``None`` if it is in what is referred to weakly."""
        if isinstance(self.holder, Place):
            return self.holder.root
        return self if self.holder is _names else None

    def was_of(self, obj: Any) -> bool:
        """Return whether this was the place of an object, which may be elsewhere now."""
        part = self.part and self.part()
        if part is None or id(obj) != self.identity:
            return False
        return any(each is part for each in _telling_parts(obj))

    def __call__(self) -> Any:
        try:
            found = self.find(self.holder(), self.key)
        except Exception:  # of any kind: a key of the user's may be asked what it is equal to
            return None
        return found if id(found) == self.identity else None


def places(
    named: Mapping[str, Any],
    wanted: Collection[int],
    within: Collection[int] | None = None,
    largest: float = math.inf,
) -> dict[int, Place]:
    """Return the places of objects in the values of names.

    Parameters
    ----------
    named
        The values, by the names that they have in ``__main__``.
    wanted
        The identities of the objects.
    within
        The identities of the objects in which they are looked for, besides tuples and functions;
        ``None`` for all objects.
    largest
        The most parts of a container in which they are looked for.

    Returns
    -------
    dict
        The places by identity, of as many as were found.
    """
    found: dict[int, Place] = {}
    seen: set[int] = set()
    waiting: deque[tuple[Reference, Any]] = deque()

    def visit(holder: Reference, parts: Iterable[_Part]) -> None:
        for find, key, obj in parts:
            identity = id(obj)
            if identity in seen or not (
                (type(obj) not in SCALARS if within is None else identity in within)
                or isinstance(obj, _IN_BETWEEN)
            ):
                continue
            seen.add(identity)
            place = Place(holder, find, key, identity)
            if identity in wanted:
                part = next(_telling_parts(obj), None)
                told = None if part is None else weakref.ref(part)
                found[identity] = replace(place, part=told)
            waiting.append((weakref.ref(obj) if type(obj).__weakrefoffset__ else place, obj))

    visit(_names, ((dict.__getitem__, name, value) for name, value in named.items()))
    while waiting and len(found) < len(wanted) and len(seen) < MAX_OBJECTS:
        holder, obj = waiting.popleft()
        if _length(obj) <= largest:
            visit(holder, _parts(obj))
    return found


_IN_BETWEEN = (tuple, FunctionType, MethodType)


def _telling_parts(obj: Any, depth: int = 3) -> Iterator[Any]:
    """Yield parts of an object that can be referred to weakly and may change."""
    for _, _, part in islice(_parts(obj), 10):
        if is_mutable(part) and type(part).__weakrefoffset__:
            yield part
        elif depth:
            yield from _telling_parts(part, depth - 1)


def _names() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _parts(obj: Any) -> Iterator[_Part]:
    """Yield what is in an object, each with how it is found; nothing of the user's is called."""
    # Copies, because other threads may change it meanwhile.
    if isinstance(obj, dict):
        for key, part in [*dict.items(obj)]:
            yield dict.__getitem__, key, part
    kinds: tuple[Any, ...] = (list, tuple, deque)
    for kind in kinds:
        if isinstance(obj, kind):
            for index, part in enumerate([*kind.__iter__(obj)]):
                yield kind.__getitem__, index, part
    if type(obj) in (set, frozenset):
        for part in [*obj]:
            if type(part).__weakrefoffset__:  # it is referred to by itself
                yield _nowhere, None, part
    names = _attributes(obj)
    for name in names:
        try:
            part = object.__getattribute__(obj, name)
        except (AttributeError, ValueError):  # ValueError: an empty cell
            continue
        yield object.__getattribute__, name, part
    own = _own_attributes(obj)
    for name in own:
        yield _attribute, name, own[name]


def _length(obj: Any) -> int:
    kinds: tuple[Any, ...] = (dict, list, tuple, deque)
    return max((kind.__len__(obj) for kind in kinds if isinstance(obj, kind)), default=0)


def _attributes(obj: Any) -> Collection[str]:
    if isinstance(obj, CellType):
        return ("cell_contents",)
    if isinstance(obj, FunctionType):
        return "__closure__", "__defaults__", "__kwdefaults__"
    if isinstance(obj, MethodType):
        return ("__self__",)
    slots: Collection[str] = () if isinstance(obj, type) else _slot_names(type(obj))
    return slots


def _own_attributes(obj: Any) -> dict[str, Any]:
    if isinstance(obj, type | ModuleType) or not type(obj).__dictoffset__:
        return {}
    try:
        return dict(object.__getattribute__(obj, "__dict__"))
    except AttributeError:  # Python keeps those of a task to itself
        return {}


def _attribute(obj: Any, name: str) -> Any:
    return object.__getattribute__(obj, "__dict__")[name]


def _nowhere(obj: Any, key: Any) -> Any:
    raise KeyError(key)
