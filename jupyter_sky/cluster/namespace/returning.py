"""Merges values that came back from a rank into the notebook's own objects.

What is wanted: a cell that trains a model in the notebook changes that model in place, so that its
optimizer, a list that contains it and its other names see the change. The same should hold for a
cell on ranks.

What does not work: binding the name to the value that came back. That is a copy; the optimizer and
the other names would still refer to the old model.

The solution: tokens (`object_tokens`) tell which of the notebook's objects a returned one is a copy
of. These objects get the content of their copies (`in_place`), and whatever else came back is made
to refer to them instead of the copies. Objects that the cell has created are new in the notebook
too, even if their names stood for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import NamespaceItem, may_share
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.cluster.namespace.set_again import SetAgain, SetObject
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import in_place
from jupyter_sky.serialization.models import optimizers
from jupyter_sky.serialization.models.torch_kinds import is_optimizer
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries, is_mutable
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.process import module_attributes


def merge(
    values: Mapping[str, Any],
    namespace: Mapping[str, Any],
    state: RemoteState,
    rank: int,
    sent_objects: SentObjects,
    set_again: SetAgain,
) -> Mapping[str, Any]:
    """Change the notebook's objects as they were changed on a rank; return what to bind names to.

    Parameters
    ----------
    values
        The values that came back, by name.
    namespace
        The notebook's namespace.
    state
        What ranks have; it is updated, so that the changed objects are not sent again.
    rank
        The rank that the values come from.
    sent_objects
        The objects that both sides have.
    set_again
        Is told of what the rank has not got as it is here.
    """
    names = {**namespace, **module_attributes.values()}
    merger = _Merger(values, names, state, sent_objects)
    # Of any kind, from the user's classes: what was unpickled cannot always be pickled, and a class
    # may not allow its state to be set twice. Then names are bound to the copies.
    with suppress(Exception):
        if merger.prepare(rank):
            found = merger.change()
            set_again.note(SetObject(each, None) for each in merger.unlike())
            return found
    return values


class _Merger:
    """Merges in two steps, so that an error in the first one leaves everything unchanged."""

    def __init__(
        self,
        values: Mapping[str, Any],
        namespace: Mapping[str, Any],
        state: RemoteState,
        sent_objects: SentObjects,
    ) -> None:
        self._values = values
        self._namespace = namespace
        self._state = state
        self._sent_objects = sent_objects
        self._items: dict[str, NamespaceItem] = {}
        self._changes: list[tuple[Any, in_place.Change, Any]] = []
        self._views: list[tuple[Any, Any]] = []
        self._optimizers: list[Any] = []
        self._digests: dict[str, str] = {}

    def prepare(self, rank: int) -> bool:
        """Find out what to change; return whether any of the notebook's objects came back."""
        values = self._values
        back = pickling.dump_linked([*values.values()], {}).memo
        others = self._sent_objects.others(back)
        # Pickling the value of a name takes as long as if it was sent, and few share anything.
        tokens, may_hold = self._sent_objects.tokens_of(back).values(), self._sent_objects.may_be_in
        near = {name for name in self._state.now.names_anywhere() if may_hold(name, tokens)}
        # Large containers have no tokens; they are recognised by their names.
        for name in values.keys() & self._state.now.names_kept(rank) & self._namespace.keys():
            if is_mutable(values[name]) and id(values[name]) in back:
                others.setdefault(id(values[name]), [self._namespace[name]])
        if not others:
            return False
        self._items = {item.key: item for item in self._pickled({*near, *values})}
        own = self._own(back, others)
        # An object and its copy get the same number.
        numbers = {identity: number for number, identity in enumerate(own)}
        own_numbers = {id(obj): numbers[identity] for identity, obj in own.items()}
        links = in_place.Links(own_numbers, numbers)
        copies_of = {id(obj): back[identity][1] for identity, obj in own.items()}
        self._views = [*self._overlapping(own.values(), copies_of)]
        overlapping = {id(obj) for obj, _ in self._views}
        found = [
            (obj, change)
            for identity, obj in own.items()
            if (
                change := in_place.change_of_part(obj, back[identity][1])
                if id(obj) in overlapping
                else in_place.change(obj, back[identity][1], links)
            )
        ]
        # Everything that came back is copied once more, with the notebook's objects in place of
        # their copies.
        contents = [change.content for _, change in found]
        # Objects that were made only for the comparison are gone: others may have their identities.
        alike = {key: each for key, each in links.alike.items() if key in back}
        linked = alike | own
        [found_values, contents], copies = pickling.relink([[*values.values()], contents], linked)
        self._sent_objects.inherit(back, copies)
        self._optimizers = [
            linked.get(identity, copies.get(identity))
            for identity, (_, obj) in back.items()
            if is_optimizer(obj)
        ]
        self._values = dict(zip(values, found_values, strict=True))
        self._changes = [(*each, content) for each, content in zip(found, contents, strict=True)]
        changed = {id(obj) for obj, _ in found}
        self._digests = {
            key: item.digest
            for key, item in self._items.items()
            # Of bulk data, ranks have a copy under each name, which has not changed there.
            if key not in self._values and not changed.isdisjoint(item.pickled.shared)
        }
        return True

    def change(self) -> Mapping[str, Any]:
        """Make the changes, and return what to bind names to."""
        for own, change, content in self._changes:
            change.make(own, content)
        # Tensors come back to the CPU, and the notebook's own parameters may be on its GPU.
        for optimizer in filter(None, self._optimizers):
            with suppress(Exception):  # of any kind, from the user's classes
                optimizers.settle(optimizer)
        shared = blobs.MemoryDigests()
        for key, digest in self._digests.items():
            with suppress(UsageError):  # with this change, it cannot be pickled any more
                item = NamespaceItem(key, self._items[key].value, shared)
                self._state.change(digest, item, item.known_contents(self._sent_objects))
                self._sent_objects.change_digest(item.value, digest, item.digest)
                self._sent_objects.note_in_name(key, None)
        return self._values

    def _overlapping(
        self, own: Iterable[Any], copies: Mapping[int, Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Yield arrays of which memory is in several, each with what the rank has of it.

        Parameters
        ----------
        own
            What came back.
        copies
            What it came back as, by the identity of what it is a copy of.
        """
        memos = [item.pickled.shared.values() for item in self._items.values()]
        objects = [*own, *(obj for memo in memos for _, obj in memo)]
        for group in in_place.overlapping({id(obj): obj for obj in objects}.values()):
            if any(id(obj) in copies for obj in group):
                # The others are as they were here, as far as is known.
                yield from (
                    (obj, copies[id(obj)] if id(obj) in copies else obj.copy()) for obj in group
                )

    def unlike(self) -> list[Any]:
        """Return arrays that are not what the rank has, as what shares their memory was changed.

        On the rank each is an array of its own.
        """
        return [own for own, copy in self._views if in_place.differing(own, copy).any()]

    def _own(self, back: MemoEntries, others: Mapping[int, list[Any]]) -> dict[int, Any]:
        """Return the notebook's objects that came back, each by the identity of its copy.

        If several objects became one on the ranks, take the one that the requested names refer to,
        or else the one that other names refer to. If that is not unique, take none.
        """
        asked = [item for key, item in self._items.items() if key in self._values]
        found = {}
        for identity, candidates in others.items():
            for items in (asked, self._items.values()) if len(candidates) > 1 else ():
                memos = [item.pickled.memo for item in items]
                some = [each for each in candidates if any(id(each) in memo for memo in memos)]
                if len(some) == 1:
                    candidates = some
            [own, *more] = candidates
            if not more and in_place.is_changeable(own, back[identity][1]):
                found[identity] = own
        return found

    def _pickled(self, names: Iterable[str]) -> Iterator[NamespaceItem]:
        collector = ItemCollector(self._namespace)
        for name in names:
            with suppress(UsageError):  # the notebook's value cannot be pickled any more
                if may_share(self._namespace.get(name)):
                    yield from collector.with_classes(name)
