"""Objects that the notebook and a rank both have.

An optimizer that is made in the notebook after its model was sent has to find the model that is on
the rank, trained and wrapped as it may be there, not a copy. So whatever is sent gets a number, a
*token*: the shipment that it came with, and its place in the memo of the pickle, which is the same
on both sides. A later pickle names the objects that it shares with earlier ones by their tokens.

Neither side keeps an object alive for that. What cannot be referred to weakly, like a list, can be
found again only while it is small, and while a name that came with it is bound as it was.
"""

from __future__ import annotations

import enum
import io
import pickle
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

Token = tuple[str, int]
"""The shipment that an object came with, and its place in the memo."""

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


def _reference(obj: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


@dataclass(frozen=True)
class _Shipment:
    name: str
    ranks: set[int]
    objects: dict[int, tuple[Callable[[], Any], int]]


class Shipments:
    """What the notebook knows of the objects that it has sent."""

    def __init__(self) -> None:
        self._shipments: dict[str, _Shipment] = {}

    def note(self, name: str, ranks: Iterable[int], shared: Mapping[int, tuple[int, Any]]) -> None:
        """Take note of a shipment: its objects by identity, each with its place in the memo."""
        objects = {
            identity: (_reference(obj), place)
            for identity, (place, obj) in shared.items()
            if is_referable(obj)
        }
        for former in list(self._shipments.values()):
            if former.ranks <= set(ranks):
                for identity in former.objects.keys() & objects.keys():
                    del former.objects[identity]
            if not former.ranks or not any(ref() is not None for ref, _ in former.objects.values()):
                del self._shipments[former.name]
        if objects:
            self._shipments[name] = _Shipment(name, set(ranks), objects)

    def learn(self, objects: Mapping[Token, Any]) -> None:
        """Take note of objects that came back: they are those of the ranks from here on."""
        for (name, place), obj in objects.items():
            if name in self._shipments and is_referable(obj):
                self._shipments[name].objects[id(obj)] = (_reference(obj), place)

    def forget(self, rank: int) -> None:
        """Note that a rank lost everything."""
        for shipment in self._shipments.values():
            shipment.ranks.discard(rank)

    def known_to(self, rank: int) -> tuple[str, ...]:
        """Return the shipments that a rank got, in order."""
        return tuple(each.name for each in self._shipments.values() if rank in each.ranks)

    def tokens(self, rank: int, shared: Mapping[int, tuple[int, Any]]) -> dict[int, Token]:
        """Return the tokens of those objects that a rank has, by identity."""
        found: dict[int, Token] = {}
        for shipment in self._shipments.values():  # what came later counts
            if rank in shipment.ranks:
                for identity in shipment.objects.keys() & shared.keys():
                    reference, place = shipment.objects[identity]
                    if reference() is shared[identity][1]:
                        found[identity] = (shipment.name, place)
        return found


class Gone(Exception):
    """An object that came here once is not there any more."""


class Arrivals:
    """What a rank knows of the objects that it got."""

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[Token, Any] = weakref.WeakValueDictionary()
        self._plain: dict[Token, Any] = {}
        self._bound: dict[str, dict[str, int]] = {}

    def note(self, shipment: str, memo: Mapping[int, Any]) -> None:
        """Take note of what came with a shipment: the memo of its pickle."""
        if len(memo) > MOST:
            return
        for place, obj in memo.items():
            if not is_mutable(obj):
                continue
            if type(obj).__weakrefoffset__:
                self._objects[shipment, place] = obj
            elif _is_plain(obj):
                self._plain[shipment, place] = obj

    def find(self, token: Token) -> Any:
        """Return the object of a token; ``Gone`` when it is not there any more."""
        obj = self._objects.get(token)
        if obj is None:
            obj = self._plain.get(token)
        if obj is None:
            raise Gone
        return obj

    def tokens(self, memo: Mapping[int, tuple[int, Any]]) -> dict[int, Token]:
        """Return the tokens of the objects in a pickler's memo, by their place in it."""
        known = {id(obj): token for token, obj in [*self._objects.items(), *self._plain.items()]}
        return {
            place: known[identity] for identity, (place, _) in memo.items() if identity in known
        }

    def bound(self, shipment: str, names: Mapping[str, Any]) -> None:
        """Take note of the names that a shipment was bound to."""
        self._bound[shipment] = {name: id(value) for name, value in names.items()}

    def release(self, namespace: Mapping[str, Any]) -> None:
        """Let go of what is kept alive here, if no name that came with it is bound as it was."""
        for shipment, names in list(self._bound.items()):
            if not any(id(namespace.get(name)) == value for name, value in names.items()):
                del self._bound[shipment]
        self._plain = {token: obj for token, obj in self._plain.items() if token[0] in self._bound}


arrivals = Arrivals()
"""What came to this process, if it is a rank."""


class _Finder(pickle.Unpickler):
    def persistent_load(self, token: Token) -> Any:
        return arrivals.find(token)


def restore(shipment: str, stream: Buffer, buffers: Iterable[Buffer], copies: Any) -> Any:
    """Unpickle what names objects of earlier shipments.

    Parameters
    ----------
    shipment
        The name of this one.
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
    arrivals.note(shipment, unpickler.memo.copy())
    return values
