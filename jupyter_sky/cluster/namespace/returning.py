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
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.cluster.namespace import in_place
from jupyter_sky.cluster.namespace.packing import ItemCollector, NamespaceItem, may_share
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.object_tokens import MemoEntries, SentObjects


@dataclass(frozen=True)
class Merged:
    """What came back, with the notebook's own objects in it.

    Attributes
    ----------
    values
        What names are to be bound to.
    changed
        What ranks have that refers to an object which was changed: digest before, and what it is
        now, by key.
    """

    values: Mapping[str, Any]
    changed: Mapping[str, tuple[str, NamespaceItem]] = field(default_factory=dict)


def merge(
    values: Mapping[str, Any],
    namespace: Mapping[str, Any],
    there: Iterable[str],
    sent_objects: SentObjects,
) -> Merged:
    """Change what the notebook has of what came back, and return what names are bound to.

    Parameters
    ----------
    values
        What came back, by name.
    namespace
        The notebook's.
    there
        The names that ranks have.
    sent_objects
        The objects that both have.
    """
    merger = _Merger(values, dict(namespace), {*there, *values}, sent_objects)
    try:
        is_prepared = merger.prepare()
    except Exception:  # what was unpickled can mostly be pickled, but not always
        is_prepared = False
    return merger.change() if is_prepared else Merged(values)


class _Merger:
    """Makes everything ready before it changes anything."""

    def __init__(
        self,
        values: Mapping[str, Any],
        namespace: Mapping[str, Any],
        names: Iterable[str],
        sent_objects: SentObjects,
    ) -> None:
        self._values = values
        self._namespace = namespace
        self._names = names
        self._sent_objects = sent_objects
        self._items: dict[str, NamespaceItem] = {}
        self._changes: list[tuple[Any, in_place.Change, Any]] = []
        self._digests: dict[str, str] = {}

    def prepare(self) -> bool:
        """Find out what has to be changed; return whether the notebook has some of it."""
        back = pickling.dump_linked([*self._values.values()], {}).memo
        others = self._sent_objects.others(back)
        if not others:
            return False
        self._items = {item.key: item for item in self._pickled(self._names)}
        own = self._own(back, others)
        # The same number is for an object and for its copy.
        links = {identity: number for number, identity in enumerate(own)}
        own_links = {id(obj): links[identity] for identity, obj in own.items()}
        found = [
            (obj, change)
            for identity, obj in own.items()
            if (change := in_place.change(obj, back[identity][1], own_links, links))
        ]
        # What came back is copied once more, but for what the notebook has: it refers to that then.
        contents = [change.content for _, change in found]
        [values, contents], copies = pickling.relink([[*self._values.values()], contents], own)
        self._sent_objects.inherit(back, copies)
        self._values = dict(zip(self._values, values, strict=True))
        self._changes = [(*each, content) for each, content in zip(found, contents, strict=True)]
        changed = {id(obj) for obj, _ in found}
        self._digests = {
            key: item.digest
            for key, item in self._items.items()
            if key not in self._values and not changed.isdisjoint(item.pickled.memo)
        }
        return True

    def change(self) -> Merged:
        """Change it."""
        for own, change, content in self._changes:
            change.make(own, content)
        shared: dict[tuple[int, int], str] = {}
        changed = {
            key: (digest, NamespaceItem(key, self._items[key].value, shared))
            for key, digest in self._digests.items()
        }
        return Merged(self._values, changed)

    def _own(self, back: MemoEntries, others: Mapping[int, list[Any]]) -> dict[int, Any]:
        """Return the notebook's own objects, by the identity of what came back of them.

        Where several stand for the same one of the ranks, it is that which the names that are asked
        for refer to, or else other names.
        """
        asked = [item for key, item in self._items.items() if key in self._values]
        found = {}
        for identity, candidates in others.items():
            for items in asked, self._items.values():
                memos = [item.pickled.memo for item in items]
                some = [each for each in candidates if any(id(each) in memo for memo in memos)]
                if len(some or candidates) == 1:
                    candidates = some or candidates
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
