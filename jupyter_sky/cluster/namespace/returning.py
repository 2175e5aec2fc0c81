"""What comes back of an object that the notebook has goes into that object.

A cell that trains a model changes that model, for all that refers to it: its optimizer, the list it
is in, another name. Of a cell on ranks the same is expected. What comes back is a copy, so it is
seen by tokens (`object_tokens`) which of the notebook's objects it is a copy of, and these become
what their copies are (`in_place`). What else came back refers to them then. What the cell has made
is new here too, whatever its name stood for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from jupyter_sky.cluster.namespace import in_place
from jupyter_sky.cluster.namespace.packing import ItemCollector, NamespaceItem, may_share
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.object_tokens import MemoEntries, SentObjects, is_mutable


def merge(
    values: Mapping[str, Any],
    namespace: Mapping[str, Any],
    state: RemoteState,
    rank: int,
    sent_objects: SentObjects,
) -> Mapping[str, Any]:
    """Change what the notebook has of what came back, and return what names are bound to.

    Parameters
    ----------
    values
        What came back, by name.
    namespace
        The notebook's.
    state
        What ranks have; what was changed here as it has changed there is no difference.
    rank
        Where it comes from.
    sent_objects
        The objects that both have.
    """
    merger = _Merger(values, dict(namespace), state, sent_objects)
    # What was unpickled can mostly be pickled, but not always, and a class of the user's may refuse
    # to fill an object that is not empty. Then names are bound to what came back.
    with suppress(Exception):
        if merger.prepare(rank):
            return merger.change()
    return values


class _Merger:
    """Makes everything ready before it changes anything."""

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
        self._digests: dict[str, str] = {}

    def prepare(self, rank: int) -> bool:
        """Find out what has to be changed; return whether the notebook has some of it."""
        values = self._values
        back = pickling.dump_linked([*values.values()], {}).memo
        others = self._sent_objects.others(back)
        # Large containers have no tokens.
        for name in values.keys() & self._state.names_kept(rank) & self._namespace.keys():
            if is_mutable(values[name]) and id(values[name]) in back:
                others.setdefault(id(values[name]), [self._namespace[name]])
        if not others:
            return False
        self._items = {
            item.key: item for item in self._pickled({*self._state.names_anywhere(), *values})
        }
        own = self._own(back, others)
        # The same number is for an object and for its copy.
        numbers = {identity: number for number, identity in enumerate(own)}
        own_numbers = {id(obj): numbers[identity] for identity, obj in own.items()}
        links = in_place.Links(own_numbers, numbers)
        found = [
            (obj, change)
            for identity, obj in own.items()
            if (change := in_place.change(obj, back[identity][1], links))
        ]
        # What came back is copied once more, but for what the notebook has: it refers to that then.
        contents = [change.content for _, change in found]
        # Of what was made here to be compared, an identity may be that of something else by now.
        alike = {key: each for key, each in links.alike.items() if key in back}
        linked = alike | own
        [found_values, contents], copies = pickling.relink([[*values.values()], contents], linked)
        self._sent_objects.inherit(back, copies)
        self._values = dict(zip(values, found_values, strict=True))
        self._changes = [(*each, content) for each, content in zip(found, contents, strict=True)]
        changed = {id(obj) for obj, _ in found}
        self._digests = {
            key: item.digest
            for key, item in self._items.items()
            if key not in self._values and not changed.isdisjoint(item.pickled.memo)
        }
        return True

    def change(self) -> Mapping[str, Any]:
        """Change it, and return what names are bound to."""
        for own, change, content in self._changes:
            change.make(own, content)
        shared: dict[tuple[int, int], str] = {}
        for key, digest in self._digests.items():
            with suppress(UsageError):  # it refers to something by now that cannot be sent
                item = NamespaceItem(key, self._items[key].value, shared)
                self._state.change(digest, item)
        return self._values

    def _own(self, back: MemoEntries, others: Mapping[int, list[Any]]) -> dict[int, Any]:
        """Return the notebook's own objects, by the identity of what came back of them.

        Where several stand for the same one of the ranks, it is that which the names that are asked
        for refer to, or else other names.
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
        collector = ItemCollector(self._namespace, {}, {})
        for name in names:
            with suppress(UsageError):  # it has become something that cannot be sent
                if may_share(self._namespace.get(name)):
                    yield from collector.with_classes(name)
