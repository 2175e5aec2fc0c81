"""A rank's side: the objects that it has received."""

from __future__ import annotations

import io
import os
import pickle
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_sky.serialization.object_tokens.kinds import (
    MAX_OBJECTS,
    MemoEntries,
    is_mutable,
    is_plain,
)
from jupyter_sky.serialization.object_tokens.places import Place, places
from jupyter_sky.serialization.object_tokens.tokens import FIRST_OF_ONE, StrongReference, Tokens

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ObjectGone(Exception):
    """The object of a token was received once, but no longer exists."""


class ReceivedObjects:
    """A rank's side: the objects that it has received, by token.

    Attributes
    ----------
    former
        What a rank had already of what it has received last, by the identity of that. What a pickle
        only refers to is itself among it.
    edited
        The same for objects that the notebook has edited, so that they have other tokens now.
    """

    def __init__(self) -> None:
        self.former: dict[int, Any] = {}
        self.edited: dict[int, Any] = {}
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._plain: dict[int, StrongReference] = {}
        self._places: dict[int, Place] = {}
        # Until values are bound, it is not known where they will be.
        self._unplaced: dict[int, Any] = {}
        self._within: set[int] = set()
        self._pinned: dict[int, Any] = {}
        self._sweep_at = 1000

    def record(self, tokens: Tokens, memo: Mapping[int, Any], value: Any = None) -> None:
        """Record the objects of a loaded pickle, which are in its memo by index.

        Of bulk data, this is the value itself, as on the other side (`Pickled.shared`).
        """
        if len(memo) > MAX_OBJECTS:
            memo = {index: obj for index, obj in memo.items() if obj is value}
        for index, obj in memo.items():
            if not is_mutable(obj):
                continue
            token = tokens.of(index)
            present = self.get(token)
            if present is not None and present is not obj:
                self.former[id(obj)] = present
            found = (self.get(each) for each in tokens.former.get(index, ()))
            if (edited := next((each for each in found if each is not None), None)) is not None:
                self.edited[id(obj)] = edited
            self._within.add(id(obj))
            self._plain.pop(token, None)
            self._places.pop(token, None)
            if type(obj).__weakrefoffset__:
                self._objects[token] = obj
            elif is_plain(obj):
                self._plain[token] = StrongReference(obj)
            else:
                self._unplaced[token] = obj

    def forget_former(self) -> None:
        """Forget what was here already of what was received last."""
        self.former.clear()
        self.edited.clear()

    def settle(self, named: Mapping[str, Any]) -> None:
        """Let go of objects that are not referred to weakly; they are found by their places.

        Parameters
        ----------
        named
            The values that were received or given, by the names that they are bound to here.
        """
        if self._unplaced:
            wanted = {id(obj): token for token, obj in self._unplaced.items()}
            for identity, place in places(named, wanted, self._within).items():
                self._places[wanted[identity]] = place
            self._unplaced = {}
        self._within = set()
        if len(self._places) > self._sweep_at:
            kept = {token: each for token, each in self._places.items() if each() is not None}
            self._places, self._sweep_at = kept, 1000 + 2 * len(kept)

    def pin(self) -> None:
        """Hold what is found by its place until `unpin`, since it may be taken from there."""
        self._pinned |= {token: place() for token, place in self._places.items()}

    def unpin(self, names: Mapping[str, Any]) -> None:
        """Let go of what `pin` holds, and find out where it is now.

        Parameters
        ----------
        names
            The user's names.
        """
        moved: dict[int, int] = {}
        for token in [*reversed(self._pinned)]:
            held = StrongReference(self._pinned.pop(token))
            is_there = held() is not None and not held.is_only_one()
            # What was received meanwhile may have the token now.
            if is_there and token in self._places and self._places[token]() is None:
                moved[id(held())] = token
        for identity, place in places(names, moved).items() if moved else ():
            self._places[moved[identity]] = place

    def stand_in(self, token: int, received: Any, present: Any) -> None:
        """Have a token stand for what was received, and what is here, until `settle`."""
        self._unplaced[token] = received
        self.former[id(received)] = present

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
        for token, held in self._plain.items():
            if id(held()) in others:
                self._plain[token] = StrongReference(others[id(held())])
        for token, obj in self._unplaced.items():
            if id(obj) in others:
                self._unplaced[token] = others[id(obj)]
        self._within.update(map(id, others.values()))

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
        obj = self._objects.get(token, self._unplaced.get(token, self._pinned.get(token)))
        if obj is None and (find := self._plain.get(token) or self._places.get(token)):
            return find()
        return obj

    def give(self, memo: MemoEntries, common: Mapping[int, Any]) -> Tokens:
        """Return the tokens of the objects in a pickler's memo; what is new here gets one.

        By these the notebook finds out later that it has been given an object before.

        Parameters
        ----------
        memo
            The memo.
        common
            Objects by the tokens that they have on all ranks, if they are new here, or if another
            rank gives its own to the notebook.
        """
        known = self.identities()
        here = {id(obj): obj for obj in [*common.values(), *(each for _, each in memo.values())]}
        lost = here.keys() - known
        for token, place in self._places.items():
            # A cell has bound the name that it was under to something else.
            if place.identity in lost and place.was_of(here[place.identity]):
                known[place.identity] = token
                self._unplaced[token] = here[place.identity]
        self._within.update(map(id, common.values()))
        new = {token: obj for token, obj in common.items() if id(obj) not in known}
        known |= {id(obj): token for token, obj in new.items()}
        tokens = Tokens(
            FIRST_OF_ONE + int.from_bytes(os.urandom(7), "big"),
            {index: known[identity] for identity, (index, _) in memo.items() if identity in known},
        )
        self.record(tokens, dict(memo.values()))
        others = {token: obj for token, obj in new.items() if id(obj) not in memo}
        self.record(Tokens(0, dict(enumerate(others))), dict(enumerate(others.values())))
        return tokens

    def identities(self) -> dict[int, int]:
        """Return the tokens of objects by their identity."""
        known = {id(obj): token for token, obj in self._objects.items()}
        known |= {id(held()): token for token, held in self._plain.items()}
        placed = {token: find() for token, find in self._places.items()}
        return known | {id(obj): token for token, obj in placed.items() if obj is not None}

    def drop_unused(self) -> None:
        """Drop objects that nothing else refers to."""
        if not self._plain:
            return
        self._plain = {token: each for token, each in self._plain.items() if not each.is_only_one()}


received_objects = ReceivedObjects()
"""What this process has received, if it is a rank."""


class _TokenUnpickler(pickle.Unpickler):
    plain: Mapping[int, Any] = {}

    def persistent_load(self, token: int) -> Any:
        try:
            return received_objects.find(token)
        except ObjectGone:
            if token in self.plain:
                return self.plain[token]
            raise


def load_with_tokens(
    tokens: Tokens,
    stream: Buffer,
    buffers: Iterable[Buffer],
    copies: Any,
    plain: Mapping[int, Any],
) -> Any:
    """Unpickle values that refer to objects received earlier.

    Parameters
    ----------
    tokens
        The tokens of objects in this pickle.
    stream, buffers
        The pickle.
    copies
        The values with copies of those objects, to return if one of them is gone.
    plain
        The copies of plain objects, by token: such a one alone takes the place of what is gone.
    """
    unpickler = _TokenUnpickler(io.BytesIO(stream), buffers=buffers)
    unpickler.plain = plain
    try:
        values = unpickler.load()
    except ObjectGone:
        return copies
    received_objects.record(tokens, unpickler.memo.copy())
    return values
