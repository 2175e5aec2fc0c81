"""Tokens: numbers for objects that the notebook and a rank both have.

An optimizer that is made in the notebook after its model was sent must refer to the rank's model,
which may have been trained and wrapped since, and not to a copy. So every object that is sent gets
a number, its *token*. Sender and receiver agree on it by means of the pickle's memo, in which each
object has the same index on both sides. A later pickle refers to objects of earlier ones by their
tokens, as pickle's persistent ids, and an object that comes back still has its token.

Neither side keeps objects alive for that. Most are referred to weakly. An object that cannot be,
like a list, is held only while others hold it too, and only if it is small and holds plain data.
"""

from __future__ import annotations

import enum
import io
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

MemoEntries = Mapping[int, tuple[int, Any]]
"""Objects by identity, each with its index in the memo of a pickle."""

MAX_OBJECTS = 100_000
"""Objects in a value above which it is bulk data, and none of them gets a token."""

_MAX_PLAIN = 1000

_WATCHED = 100
"""Objects that came back and are looked at each time, so that those no longer used are dropped."""

_FIRST_OF_RANKS = 1 << 60
"""Tokens from here on are by ranks: no notebook counts so far, and no two ranks choose the same."""

_CONTAINERS = (dict, list, set, bytearray, types.CellType)
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_IMMUTABLE = (
    *(*_SCALARS, tuple, frozenset, range, slice, enum.Enum, type, types.FunctionType),
    *(types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.CodeType),
)


def is_mutable(obj: Any) -> bool:
    """Return whether it matters if two names refer to one object or to two equal ones."""
    if isinstance(obj, _CONTAINERS):
        return True
    if isinstance(obj, _IMMUTABLE):
        return False
    kind = type(obj)
    if kind is object or kind.__dictoffset__ or kind.__weakrefoffset__:
        return True  # an object() has nothing but its identity
    return kind.__module__ == "__main__" or kind.__module__.startswith("numpy.random")


def is_referable(obj: Any) -> bool:
    """Return whether an object can be kept track of by a token."""
    return bool(type(obj).__weakrefoffset__) or is_plain(obj)


def is_plain(obj: Any) -> bool:
    """Return whether it is a small container of nothing but numbers and texts, or an `object()`."""
    if type(obj) is object:
        return True
    if not isinstance(obj, (dict, list, set)):
        return False
    left = _MAX_PLAIN
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
            elif not isinstance(part, _SCALARS):
                return False
    return True


@dataclass(frozen=True)
class Tokens:
    """The tokens of the objects in one pickle.

    Attributes
    ----------
    first
        The token of a new object at index 0 of the pickle's memo; others are counted from it.
    known
        The tokens of objects that already have one, by their index in the memo.
    """

    first: int
    known: Mapping[int, int] = field(default_factory=dict)

    def of(self, index: int) -> int:
        """Return the token of the object at an index of the memo."""
        return self.known.get(index, self.first + index)


class SentObjects:
    """The notebook's side: the tokens of objects that it has sent, and which ranks have them.

    It belongs to `NamespaceSync`, whose lock must be held.
    """

    def __init__(self) -> None:
        self._next = 0
        self._tokens: dict[int, tuple[Callable[[], Any], int]] = {}
        self._ranks: dict[int, frozenset[int]] = {}
        self._in_classes: set[int] = set()
        self._returned: list[int] = []  # the last objects that came back: most are dropped soon
        self._sweep_at = 1000

    def assign_tokens(self, shared: MemoEntries) -> Tokens:
        """Assign tokens to the objects of a pickle."""
        known = {
            index: self._tokens[identity][1]
            for identity, (index, obj) in shared.items()
            if self._has_token(identity, obj)
        }
        first = self._next
        self._next += 1 + max((index for index, _ in shared.values()), default=0)
        return Tokens(first, known)

    def record_sent(self, ranks: Iterable[int], shared: MemoEntries, tokens: Tokens) -> None:
        """Record that ranks get the objects of a pickle."""
        self._sweep()
        receivers = frozenset(ranks)
        for identity, (index, obj) in shared.items():
            if is_referable(obj):
                token = tokens.of(index)
                self._tokens[identity] = _reference(obj), token
                self._ranks[token] = self._ranks.get(token, frozenset()) | receivers

    def record_returned(self, objects: Mapping[int, Any]) -> None:
        """Record objects that came back, by token: they stand for those that ranks have."""
        self._sweep()
        self._drop_unused(self._returned)
        kept = [identity for identity in self._returned if identity in self._tokens]
        self._returned = kept[-_WATCHED:]
        # What was sent counts most: a rank has a wrapper that is not sent, like that of DDP, too.
        for token, obj in sorted(objects.items(), reverse=True):
            if is_referable(obj):
                self._tokens[id(obj)] = _reference(obj), token
                self._returned.append(id(obj))

    def others(self, memo: MemoEntries) -> dict[int, list[Any]]:
        """Return other objects of the notebook's that stand for the same ones of ranks.

        Parameters
        ----------
        memo
            What came back.

        Returns
        -------
        dict
            The others, by the identity of what came back.
        """
        tokens = {
            identity: self._tokens[identity][1]
            for identity, (_, obj) in memo.items()
            if self._has_token(identity, obj)
        }
        alike: dict[int, list[Any]] = {token: [] for token in tokens.values()}
        for reference, token in self._tokens.values() if tokens else ():
            if token in alike and (obj := reference()) is not None:
                alike[token].append(obj)
        own = {
            identity: [each for each in alike[token] if each is not memo[identity][1]]
            for identity, token in tokens.items()
        }
        return {identity: others for identity, others in own.items() if others}

    def inherit(self, former: MemoEntries, copies: Mapping[int, Any]) -> None:
        """Record copies of objects, which stand for the same ones of ranks.

        Parameters
        ----------
        former
            The objects.
        copies
            Their copies, by the identity of the objects.
        """
        for identity, (_, obj) in former.items():
            if identity in copies and self._has_token(identity, obj):
                copy, token = copies[identity], self._tokens[identity][1]
                self._tokens[id(copy)] = _reference(copy), token

    def forget(self, rank: int) -> None:
        """Record that a rank no longer has any of them."""
        self._ranks = {token: ranks - {rank} for token, ranks in self._ranks.items()}

    def known_to(self, rank: int, shared: MemoEntries) -> dict[int, int]:
        """Return the tokens of the objects that a rank has, by identity."""
        found = {}
        for identity, (_, obj) in shared.items():
            if self._has_token(identity, obj):
                token = self._tokens[identity][1]
                if rank in self._ranks.get(token, ()):
                    found[identity] = token
        return found

    def note_in_classes(self, tokens: Iterable[int]) -> None:
        """Note that objects are parts of classes, which few are."""
        self._in_classes.update(tokens)

    def any_in_classes(self, shared: MemoEntries) -> bool:
        """Return whether any of the objects was sent as part of a class."""
        return bool(self._in_classes) and any(
            self._tokens[identity][1] in self._in_classes
            for identity, (_, obj) in shared.items()
            if self._has_token(identity, obj)
        )

    def _has_token(self, identity: int, obj: Any) -> bool:
        return identity in self._tokens and self._tokens[identity][0]() is obj

    def _sweep(self) -> None:
        """Drop what is unused now and then, so that looking for it costs little."""
        if len(self._tokens) <= self._sweep_at:
            return
        self._drop_unused(list(self._tokens))
        used = {token for _, token in self._tokens.values()}
        self._ranks = {token: ranks for token, ranks in self._ranks.items() if token in used}
        self._sweep_at = 1000 + 2 * len(self._tokens)

    def _drop_unused(self, identities: Iterable[int]) -> None:
        """Drop the tokens of objects that are gone, or that are kept alive only by this table."""
        for identity in identities:
            if identity in self._tokens:
                reference = self._tokens[identity][0]
                gone = reference() is None
                if gone or (isinstance(reference, _StrongReference) and reference.is_only_one()):
                    del self._tokens[identity]


class _StrongReference:
    """Replaces a weak reference for objects that do not support them."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __call__(self) -> Any:
        return self._obj

    def is_only_one(self) -> bool:
        """Return whether nothing else refers to the object."""
        return sys.getrefcount(self._obj) <= 2  # this one, and the argument


def _reference(obj: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(obj)
    except TypeError:
        return _StrongReference(obj)


class ObjectGone(Exception):
    """The object of a token was received once, but no longer exists."""


class ReceivedObjects:
    """A rank's side: the objects that it has received, by token.

    Attributes
    ----------
    former
        What a rank had already of what it has received last, by the identity of that. What a pickle
        only refers to is itself among it.
    """

    def __init__(self) -> None:
        self.former: dict[int, Any] = {}
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._plain: dict[int, _StrongReference] = {}

    def record(self, tokens: Tokens, memo: Mapping[int, Any]) -> None:
        """Record the objects of a loaded pickle, which are in its memo by index."""
        if len(memo) > MAX_OBJECTS:
            return
        for index, obj in memo.items():
            if not is_mutable(obj):
                continue
            present = self.get(tokens.of(index))
            if present is not None and present is not obj:
                self.former[id(obj)] = present
            if type(obj).__weakrefoffset__:
                self._objects[tokens.of(index)] = obj
            elif is_plain(obj):
                self._plain[tokens.of(index)] = _StrongReference(obj)

    def replace(self, others: Mapping[int, Any]) -> None:
        """Have tokens stand for other objects.

        Parameters
        ----------
        others
            What takes the place of what was received, by the identity of that.
        """
        for token, obj in list(self._objects.items()):
            if id(obj) in others:
                self._objects[token] = others[id(obj)]
        for token, reference in self._plain.items():
            if id(reference()) in others:
                self._plain[token] = _StrongReference(others[id(reference())])

    def find(self, token: int) -> Any:
        """Return the object of a token.

        Raises
        ------
        ObjectGone
            If it no longer exists.
        """
        obj = self.get(token)
        if obj is None:
            raise ObjectGone
        self.former[id(obj)] = obj
        return obj

    def get(self, token: int) -> Any:
        """Return the object of a token; ``None`` if it no longer exists."""
        obj = self._objects.get(token)
        return self._plain[token]() if obj is None and token in self._plain else obj

    def give(self, memo: MemoEntries) -> Tokens:
        """Return the tokens of the objects in a pickler's memo; what is new here gets one.

        By these the notebook finds out later that it has been given an object before.
        """
        known = {id(obj): token for token, obj in self._objects.items()}
        known |= {id(reference()): token for token, reference in self._plain.items()}
        tokens = Tokens(
            _FIRST_OF_RANKS + int.from_bytes(os.urandom(7), "big"),
            {index: known[identity] for identity, (index, _) in memo.items() if identity in known},
        )
        self.record(tokens, dict(memo.values()))
        return tokens

    def drop_unused(self) -> None:
        """Drop objects that nothing else refers to."""
        if not self._plain:
            return
        self._plain = {token: each for token, each in self._plain.items() if not each.is_only_one()}


received_objects = ReceivedObjects()
"""What this process has received, if it is a rank."""


class _TokenUnpickler(pickle.Unpickler):
    def persistent_load(self, token: int) -> Any:
        return received_objects.find(token)


def load_with_tokens(tokens: Tokens, stream: Buffer, buffers: Iterable[Buffer], copies: Any) -> Any:
    """Unpickle values that refer to objects received earlier.

    Parameters
    ----------
    tokens
        The tokens of objects in this pickle.
    stream, buffers
        The pickle.
    copies
        The values with copies of those objects, to return if one of them is gone.
    """
    unpickler = _TokenUnpickler(io.BytesIO(stream), buffers=buffers)
    try:
        values = unpickler.load()
    except ObjectGone:
        return copies
    received_objects.record(tokens, unpickler.memo.copy())
    return values
