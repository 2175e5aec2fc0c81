"""Objects that the notebook and a rank both have.

An optimizer that is made in the notebook after its model was sent has to find the model that is on
the rank, trained and wrapped as it may be there, not a copy. So every object that is sent gets a
number, its *token*. Sender and receiver know which is which by the memo of the pickle, where an
object has the same place on both sides. A later pickle names what it shares with earlier ones by
their tokens, and an object that comes back still has the one that it was sent with.

Neither side keeps an object alive for that. What cannot be referred to weakly, like a list, is held
only while others hold it too, and only if it is small and without tensors and the like.
"""

from __future__ import annotations

import enum
import io
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

Places = Mapping[int, tuple[int, Any]]
"""Objects by identity, each with its place in the memo of a pickle."""

MOST = 100_000
"""Objects in a value above which it is bulk data, and nothing in it is looked for elsewhere."""

_MOST_PLAIN = 1000

_CONTAINERS = (dict, list, set, bytearray, types.CellType)
_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_FIXED = (
    *(*_ATOMS, tuple, frozenset, range, slice, enum.Enum, type, types.FunctionType),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.CodeType),
)


def is_mutable(obj: Any) -> bool:
    """Return whether it matters that two names have the same object rather than equal ones."""
    if isinstance(obj, _CONTAINERS):
        return True
    if isinstance(obj, _FIXED):
        return False
    kind = type(obj)
    if kind.__dictoffset__ or kind.__weakrefoffset__:
        return True
    return kind.__module__ == "__main__" or kind.__module__.startswith("numpy.random")


def is_referable(obj: Any) -> bool:
    """Return whether a token can stand for an object."""
    return bool(type(obj).__weakrefoffset__) or _is_plain(obj)


def _is_plain(obj: Any) -> bool:
    """Return whether it is a container with nothing in it but numbers and texts, and not many."""
    if not isinstance(obj, (dict, list, set)):
        return False
    left = _MOST_PLAIN
    waiting: list[Any] = [obj]
    while waiting:
        container = waiting.pop()
        parts = [*container, *container.values()] if isinstance(container, dict) else container
        left -= len(parts)
        if left < 0:
            return False
        for part in parts:
            if isinstance(part, (dict, list, set, tuple)):
                waiting.append(part)
            elif not isinstance(part, _ATOMS):
                return False
    return True


@dataclass(frozen=True)
class Tokens:
    """The tokens of the objects in one pickle.

    Attributes
    ----------
    first
        The token of what is at the first place in its memo, if it is new; and so on.
    known
        The tokens of those that have one already, by their place.
    """

    first: int
    known: Mapping[int, int] = field(default_factory=dict)

    def of(self, place: int) -> int:
        """Return the token of what is at a place."""
        return self.known.get(place, self.first + place)


class Departures:
    """What the notebook knows of the objects that it has sent."""

    def __init__(self) -> None:
        self._next = 0
        self._tokens: dict[int, tuple[Callable[[], Any], int]] = {}
        self._ranks: dict[int, frozenset[int]] = {}
        self._sweep_at = 1000

    def prepare(self, shared: Places) -> Tokens:
        """Give tokens to the objects of a pickle."""
        known = {
            place: self._tokens[identity][1]
            for identity, (place, obj) in shared.items()
            if self._has_token(identity, obj)
        }
        first = self._next
        self._next += 1 + max((place for place, _ in shared.values()), default=0)
        return Tokens(first, known)

    def note(self, ranks: Iterable[int], shared: Places, tokens: Tokens) -> None:
        """Take note that ranks get the objects of a pickle."""
        if len(self._tokens) > self._sweep_at:
            self._sweep()
        all_of_them = frozenset(ranks)
        for identity, (place, obj) in shared.items():
            if is_referable(obj):
                token = tokens.of(place)
                self._tokens[identity] = _reference(obj), token
                self._ranks[token] = self._ranks.get(token, frozenset()) | all_of_them

    def learn(self, objects: Mapping[int, Any]) -> None:
        """Take note of objects that came back: here they stand for those of the ranks."""
        for token, obj in objects.items():
            if token in self._ranks and is_referable(obj):
                self._tokens[id(obj)] = _reference(obj), token

    def forget(self, rank: int) -> None:
        """Note that a rank lost everything."""
        self._ranks = {token: ranks - {rank} for token, ranks in self._ranks.items()}

    def known_to(self, rank: int, shared: Places) -> dict[int, int]:
        """Return the tokens of those objects that a rank has, by identity."""
        found = {}
        for identity, (_, obj) in shared.items():
            if self._has_token(identity, obj):
                token = self._tokens[identity][1]
                if rank in self._ranks.get(token, ()):
                    found[identity] = token
        return found

    def _has_token(self, identity: int, obj: Any) -> bool:
        return identity in self._tokens and self._tokens[identity][0]() is obj

    def _sweep(self) -> None:
        """Forget objects that are gone, and those that nobody else holds."""
        for identity in list(self._tokens):
            reference = self._tokens[identity][0]
            gone = reference() is None
            if gone or (isinstance(reference, _Strong) and reference.is_ours_alone()):
                del self._tokens[identity]
        used = {token for _, token in self._tokens.values()}
        self._ranks = {token: ranks for token, ranks in self._ranks.items() if token in used}
        self._sweep_at = 1000 + 2 * len(self._tokens)


class _Strong:
    """Stands in for a weak reference where there can be none."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __call__(self) -> Any:
        return self._obj

    def is_ours_alone(self) -> bool:
        """Return whether nobody else holds the object."""
        return sys.getrefcount(self._obj) <= 2  # here, and to count


def _reference(obj: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(obj)
    except TypeError:
        return _Strong(obj)


class Gone(Exception):
    """An object that came here once is not there any more."""


class Arrivals:
    """What a rank knows of the objects that it got."""

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._plain: dict[int, _Strong] = {}

    def note(self, tokens: Tokens, memo: Mapping[int, Any]) -> None:
        """Take note of what arrived: the memo of its pickle."""
        if len(memo) > MOST:
            return
        for place, obj in memo.items():
            if not is_mutable(obj):
                continue
            if type(obj).__weakrefoffset__:
                self._objects[tokens.of(place)] = obj
            elif _is_plain(obj):
                self._plain[tokens.of(place)] = _Strong(obj)

    def find(self, token: int) -> Any:
        """Return the object of a token; ``Gone`` when it is not there any more."""
        obj = self._objects.get(token)
        if obj is not None:
            return obj
        if token in self._plain:
            return self._plain[token]()
        raise Gone

    def tokens(self, memo: Places) -> dict[int, int]:
        """Return the tokens of the objects in a pickler's memo, by their place in it."""
        known = {id(obj): token for token, obj in self._objects.items()}
        known |= {id(reference()): token for token, reference in self._plain.items()}
        return {
            place: known[identity] for identity, (place, _) in memo.items() if identity in known
        }

    def release(self) -> None:
        """Let go of what nobody else holds any more."""
        self._plain = {
            token: each for token, each in self._plain.items() if not each.is_ours_alone()
        }


arrivals = Arrivals()
"""What came to this process, if it is a rank."""


class _Finder(pickle.Unpickler):
    def persistent_load(self, token: int) -> Any:
        return arrivals.find(token)


def restore(tokens: Tokens, stream: Buffer, buffers: Iterable[Buffer], copies: Any) -> Any:
    """Unpickle what names objects that came before.

    Parameters
    ----------
    tokens
        Those of what comes now.
    stream, buffers
        The pickle.
    copies
        The same with copies of those objects, for when one of them is not there any more.
    """
    unpickler = _Finder(io.BytesIO(stream), buffers=buffers)
    try:
        values = unpickler.load()
    except Gone:
        return copies
    arrivals.note(tokens, unpickler.memo.copy())
    return values
