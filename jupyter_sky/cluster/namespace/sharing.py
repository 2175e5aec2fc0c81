"""Shared objects: which names are sent in one pickle, and which refer to objects that ranks have.

Two names that share a mutable object have to share it on a rank as well. Either both are in one
pickle, or the pickle of one refers to the object by its token (see `object_tokens`). The second way
is preferred, because it keeps what the rank has done to the other name since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import NamespaceItem, may_share
from jupyter_sky.cluster.namespace.packing import PackedGroup, pack_group
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.object_tokens.sent import SentObjects


class GroupPacker:
    """Divides the items that ranks lack into groups, and packs these.

    Parameters
    ----------
    state
        What ranks have under each name.
    sent_objects
        The objects that ranks have.
    """

    def __init__(self, state: StateAtTurn, sent_objects: SentObjects) -> None:
        self._state = state
        self._sent_objects = sent_objects

    def pack(
        self,
        lacking: Sequence[NamespaceItem],
        collector: ItemCollector,
        ranks: Sequence[int],
        forced: Collection[str] = (),
        undecided: Collection[str] = (),
    ) -> Iterator[tuple[Sequence[NamespaceItem], PackedGroup, list[int]]]:
        """Yield groups in the order in which ranks have to load them, with items and receivers.

        Parameters
        ----------
        lacking
            The items that all of these ranks lack.
        collector
            Pickles the notebook's values, also of names that the ranks have already.
        ranks
            The receivers.
        forced
            Names whose objects on the ranks are to be replaced.
        undecided
            Names that are not sent, as a run before may bind them.
        """
        settings, classes, wanted = (
            [item for item in lacking if item.kind == kind] for kind in ("setting", "class", "name")
        )
        # Modules come first: the other items import them.
        for item in settings:
            yield [item], pack_group([item], self._sent_objects), list(ranks)
        in_them = _shared(classes)
        known = {rank: self._sent_objects.known_to(rank, in_them) for rank in ranks}
        kept = [
            item
            for item in self._kept(collector, ranks, wanted, classes, any(known.values()))
            if item.key not in undecided or not any(self._state.lacks(rank, item) for rank in ranks)
        ]
        unforced = [] if any(item.key in forced for item in wanted) else wanted
        elsewhere = _shared(kept).keys()
        there = {
            rank: self._in_classes(kept, rank) | self._as_sent(unforced, rank, elsewhere)
            for rank in ranks
        }
        # Classes are one group: they may need each other.
        for links, receivers in self._class_links(known, [*wanted, *kept]) if classes else ():
            group = pack_group(classes, self._sent_objects, links)
            yield classes, group, receivers
            # Ranks load it before the names: those can refer to what is in the classes.
            for rank in receivers:
                there[rank] |= group.class_tokens
        kept_names = [item for item in kept if item.is_name]
        for items, links, receivers in self._groups_of_names(wanted, kept_names, there, forced):
            yield items, pack_group(items, self._sent_objects, links), receivers

    def _groups_of_names(
        self,
        wanted: Sequence[NamespaceItem],
        kept: Sequence[NamespaceItem],
        there: Mapping[int, Mapping[int, int]],
        forced: Collection[str],
    ) -> Iterator[tuple[list[NamespaceItem], dict[int, int], list[int]]]:
        """Yield the groups of names that ranks lack, each of those that share objects.

        Each comes with the tokens of objects that it only refers to, and with its receivers, which
        have these. ``there`` are the tokens of objects that each rank has before it loads them.
        """
        for members in _connected([*wanted, *kept]):
            group = [item for item in members if item in wanted]
            others = [item for item in members if item not in wanted]
            if not group:
                continue
            shared = _shared(group)
            alike: dict[Any, list[int]] = {}
            for rank, tokens in there.items():
                key = self._payload_key(others, rank), frozenset(_among(tokens, shared).items())
                alike.setdefault(key, []).append(rank)
            unwanted = _shared(item for item in group if item.key in forced)
            for receivers in alike.values():
                rank = receivers[0]
                yield *self._linked(group, others, rank, there[rank], unwanted), receivers

    def _in_classes(self, kept: Sequence[NamespaceItem], rank: int) -> dict[int, int]:
        """Return the tokens of objects in classes that a rank has and that have not changed."""
        classes = [item for item in kept if item.is_class]
        same = [item for item in classes if not self._state.lacks(rank, item)]
        return self._sent_objects.known_to(rank, _shared(same))

    def _as_sent(
        self, items: Sequence[NamespaceItem], rank: int, elsewhere: Collection[int]
    ) -> dict[int, int]:
        """Return the tokens of objects that a rank has under names which mean something else now.

        So is ``best`` what the rank has trained, after ``best = model`` and another ``model``, and
        so is what is in ``model = Wrapper(model)``.

        Parameters
        ----------
        items
            What the rank is sent.
        rank
            The rank.
        elsewhere
            Identities of objects that it has under other names, which are known anyway.
        """
        found: dict[int, int] = {}
        without: set[int] = set()
        for identity, (_, obj) in _shared(items).items():
            if identity in found or identity in elsewhere:
                continue
            if not (digest := self._sent_objects.digest_on(rank, obj)):
                continue
            with suppress(UsageError):  # it is pickled by its place in something else
                part = next((item for item in items if item.value is obj), None)
                part = part or NamespaceItem("a part", obj, blobs.MemoryDigests())
                if part.digest == digest:
                    tokens = self._sent_objects.known_to(rank, part.pickled.shared)
                    without |= part.pickled.shared.keys() - tokens.keys()
                    found |= tokens
        # What else is sent must not have a copy of a part that the rank has.
        if (
            found
            and without & pickling.dump_linked([each.value for each in items], found).memo.keys()
        ):
            return {}
        return found

    def _class_links(
        self, known: Mapping[int, Mapping[int, int]], others: Sequence[NamespaceItem]
    ) -> Iterator[tuple[dict[int, int], list[int]]]:
        """Yield the tokens that classes can refer to, with the ranks that get the same.

        Parameters
        ----------
        known
            For each rank, the tokens of objects in the classes that it has.
        others
            The other items that ranks have or are sent. Only for objects in one of these is it
            known whether they have changed.
        """
        alike: dict[Any, list[int]] = {}
        for rank, tokens in known.items():
            same: set[int] = set()
            changed: set[int] = set()
            for item in others if tokens else ():
                lacks = self._state.lacks(rank, item)
                (changed if lacks else same).update(item.pickled.shared)
            links = _among(tokens, same - changed)
            alike.setdefault(frozenset(links.items()), []).append(rank)
        for links, ranks in alike.items():
            yield dict(links), ranks

    def _kept(
        self,
        collector: ItemCollector,
        ranks: Sequence[int],
        wanted: Sequence[NamespaceItem],
        classes: Sequence[NamespaceItem],
        are_in_classes: bool,
    ) -> list[NamespaceItem]:
        """Return what all of these ranks have and what may share an object with what they lack.

        For the name of a class, these are the class and the classes that it needs.
        ``are_in_classes`` says that a rank has an object which is in the ``classes`` that it lacks.
        """
        shared = _shared(wanted)
        if not (are_in_classes or shared):
            return []
        # Pickling all classes takes time, and few objects are shared with one.
        with_classes = are_in_classes or self._sent_objects.any_in_classes(shared)
        # Nor do most names: pickling what they have takes as long as if they were sent.
        parts = None if classes else self._sent_objects.tokens_of(shared).values()
        found = []
        for name in sorted(self._state.names_on(ranks)):
            value = collector.namespace.get(name)
            with suppress(UsageError):  # the notebook's value cannot be pickled any more
                if isinstance(value, type) and may_share(value):
                    items = collector.with_classes(name) if with_classes else ()
                    found += [item for item in items if item.is_class]
                elif may_share(value) and (
                    parts is None or self._sent_objects.may_be_in(name, parts)
                ):
                    found.append(collector.item(name))
        lacking = {item.key for item in [*wanted, *classes]}
        return [item for item in dict.fromkeys(found) if item.key not in lacking]

    def _payload_key(self, others: Sequence[NamespaceItem], rank: int) -> Any:
        """Return a key that is equal for ranks that can be sent the same pickle."""
        lacks = [self._state.lacks(rank, item) for item in others]
        rebound = [self._has_rebound(rank, item) for item in others]
        as_sent = [
            it and self._is_as_sent(rank, item) for it, item in zip(rebound, others, strict=True)
        ]
        links = self._sent_objects.known_to(rank, _shared(others))
        return tuple(lacks), tuple(rebound), tuple(as_sent), frozenset(links.items())

    def _linked(
        self,
        group: Sequence[NamespaceItem],
        others: Sequence[NamespaceItem],
        rank: int,
        there: Mapping[int, int],
        unwanted: Collection[int],
    ) -> tuple[list[NamespaceItem], dict[int, int]]:
        """Return a group with the items that have to join it, and the tokens that it can refer to.

        Parameters
        ----------
        group
            The items to send.
        others
            The other items that are connected with them.
        rank
            One of the receivers, which are all alike.
        there
            The tokens of objects in classes, which ranks load before.
        unwanted
            The identities of objects that are sent again even if the rank has them.
        """
        # Items that have changed join it even if the cell does not need them: the objects that they
        # share with the group are no longer what the rank has.
        joining = [item for item in others if self._state.lacks(rank, item)]
        whole = list(group)
        while True:
            whole += joining
            others = [item for item in others if item not in joining]
            here = _among(there, _shared(whole) if there else ())
            if not others:
                return whole, here
            shared = self._shared_with(whole, others, rank)
            links = {**self._sent_objects.known_to(rank, shared), **here}
            links = {each: token for each, token in links.items() if each not in unwanted}
            # A shared object without a token would become a copy.
            without_token = shared.keys() - links.keys()
            without_token &= pickling.dump_linked([item.value for item in whole], links).memo.keys()
            joining = [
                item
                for item in others
                if without_token & item.pickled.shared.keys() and not self._has_rebound(rank, item)
            ]
            if not joining:
                return whole, links

    def _shared_with(
        self, group: Sequence[NamespaceItem], others: Sequence[NamespaceItem], rank: int
    ) -> dict[int, tuple[int, Any]]:
        """Return the objects of other items, but for those that may have changed since."""
        same = [item for item in others if not self._has_rebound(rank, item)]
        if len(same) == len(others):
            return _shared(others)
        # Under their names, the rank has values of its own, which do not tell.
        changed = _shared(item for item in group if self._state.has_former(rank, item.key))
        unchanged = [item for item in others if self._is_as_sent(rank, item)]
        rest = {key: each for key, each in _shared(unchanged).items() if key not in changed}
        return {**rest, **_shared(same)}

    def _is_as_sent(self, rank: int, item: NamespaceItem) -> bool:
        """Return whether the notebook has not changed a value since a rank was sent it."""
        return self._sent_objects.digest_on(rank, item.value) == item.digest

    def _has_rebound(self, rank: int, item: NamespaceItem) -> bool:
        return self._state.has_rebound(rank, item.key, item.value)


def _connected(items: Sequence[NamespaceItem]) -> list[list[NamespaceItem]]:
    """Return the connected components, where items that share a mutable object are connected."""
    component = {item.key: [item] for item in items}
    owner: dict[int, str] = {}
    for item in items:
        for identity in item.pickled.shared:
            first = owner.setdefault(identity, item.key)
            if component[first] is not component[item.key]:
                merged = [*component[first], *component[item.key]]
                component.update({each.key: merged for each in merged})
    return list({id(members): members for members in component.values()}.values())


def _shared(items: Iterable[NamespaceItem]) -> dict[int, tuple[int, Any]]:
    return {key: entry for item in items for key, entry in item.pickled.shared.items()}


def _among(tokens: Mapping[int, int], identities: Collection[int]) -> dict[int, int]:
    """Return the tokens of some objects, by identity."""
    return {each: token for each, token in tokens.items() if each in identities}
