"""Tokens: numbers for objects that the notebook and a rank both have.

An optimizer that is made in the notebook after its model was sent must refer to the rank's model,
which may have been trained and wrapped since, and not to a copy. So every object that is sent gets
a number, its *token*. Sender and receiver agree on it by means of the pickle's memo, in which each
object has the same index on both sides. A later pickle refers to objects of earlier ones by their
tokens, as pickle's persistent ids, and an object that comes back still has its token.

Neither side keeps objects alive for that. Most are referred to weakly. An object that cannot be,
like a list, is held only while others hold it too, if it is small and holds plain data; any other
is referred to by its place (see `places`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FIRST_OF_RANKS = 1 << 60
"""Tokens from here on are by ranks: no notebook counts so far, and no two ranks choose the same."""

FIRST_OF_ONE = FIRST_OF_RANKS + (1 << 56)
"""Those from here on are by one rank alone: of several that an object has, the smallest counts."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of the objects in one pickle.

    Attributes
    ----------
    first
        The token of a new object at index 0 of the pickle's memo; others are counted from it.
    known
        The tokens of objects that already have one, by their index in the memo.
    former
        The tokens that objects had before the notebook has edited them, the last one first.
    """

    first: int
    known: Mapping[int, int] = field(default_factory=dict)
    former: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def of(self, index: int) -> int:
        """Return the token of the object at an index of the memo."""
        return self.known.get(index, self.first + index)


class StrongReference:
    """Replaces a weak reference for objects that do not support them."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __call__(self) -> Any:
        return self._obj

    def is_only_one(self) -> bool:
        """Return whether nothing else refers to the object."""
        return sys.getrefcount(self._obj) <= 2  # this one, and the argument


def reference(obj: Any) -> Callable[[], Any]:
    """Return a reference to an object: a weak one, if it supports that."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return StrongReference(obj)
