"""Packing: what ranks are sent is pickled once more, in groups of items that share objects."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.rank_values import RankValue
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import container_changes, model_changes
from jupyter_sky.serialization.changes.container_changes import Contents
from jupyter_sky.serialization.changes.model_changes import HeldModels
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries, is_referable
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.transport.protocol.messages import NameGroup


@dataclass(frozen=True)
class PackedGroup:
    """Names, classes, or one other item, in one pickle.

    Attributes
    ----------
    message
        The group as it is sent, without the ranks that it is for.
    blobs
        Its large parts, by digest.
    shared, tokens
        The objects in it that later pickles may refer to, and their tokens.
    models, contents
        The models of its values, and what is in their containers, by name; of classes, by key.
    named
        Its values, by name.
    class_tokens
        The tokens of objects in its classes that later groups can refer to, by identity.
    """

    message: NameGroup
    blobs: Mapping[str, memoryview]
    shared: MemoEntries
    tokens: Tokens
    models: Mapping[str, HeldModels]
    contents: Mapping[str, Contents]
    named: Mapping[str, Any]
    class_tokens: Mapping[int, int]

    @property
    def digests(self) -> Iterator[tuple[int, str]]:
        """The digests of its values, with their identities."""
        return ((id(each), self.message["digests"][key]) for key, each in self.named.items())

    def as_delivered(self, run: int) -> dict[str, RankValue]:
        """Return what a rank has of it, by name or key, once it was sent for a run."""
        return {
            key: RankValue(
                digest=digest,
                run=run,
                models=self.models.get(key),
                contents=self.contents.get(key),
            )
            for key, digest in self.message["digests"].items()
        }

    def differences(
        self, state: StateAtTurn, rank: int, whole: Collection[str]
    ) -> dict[str, list[str]]:
        """Return what differs in values that a rank has, part by part (`serialization.changes`).

        Parameters
        ----------
        state
            What ranks have.
        rank
            The rank.
        whole
            Names of which everything counts: the rank has to have what the notebook has.
        """
        keys = self.message["names"]
        has = {key: state.value(rank, key) for key in keys}
        models = (
            (key, each.models if each else None, self.models.get(key)) for key, each in has.items()
        )
        tokens = self._tokens_before
        former = _contents_on(state, rank, keys)
        if not tokens <= former.keys():  # they were under other names
            former = {**_contents_on(state, rank, state.values(rank)), **former}
        former = {token: former[token] for token in tokens & former.keys()}
        return {
            **model_changes.changes_of(models, self._numbers, whole),
            **container_changes.changes_of(former, self.contents, whole),
        }

    @cached_property
    def _tokens_before(self) -> set[int]:
        """The tokens of the containers in it that had been sent before."""
        known = set(self.tokens.known.values())
        return known & {token for each in self.contents.values() for token in each}

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """The tokens of its objects, by identity."""
        return {key: self.tokens.of(index) for key, (index, _) in self.shared.items()}


def _numbers(tokens: Tokens) -> list[Any]:
    return [tokens.first, dict(tokens.known), dict(tokens.former)]


def _contents_on(state: StateAtTurn, rank: int, names: Iterable[str]) -> Contents:
    """Return what was in the containers of values when a rank was sent them last."""
    values = [value for name in names if (value := state.value(rank, name)) and value.contents]
    found: dict[int, Mapping[str, str]] = {}
    for value in sorted(values, key=lambda each: each.run):
        found.update(value.contents or {})
    return found


def pack_group(
    items: Sequence[NamespaceItem],
    sent_objects: SentObjects,
    links: Mapping[int, int] | None = None,
) -> PackedGroup:
    """Pickle names, classes, or one other item as one group.

    Parameters
    ----------
    items
        Its items; all are of one kind.
    sent_objects
        Gives tokens to the objects in it.
    links
        The tokens of objects that the receivers have, by identity.
    """
    kind = items[0].kind
    values = [item.value for item in items]
    classes = {item.class_identity for item in items} if kind == "class" else ()
    if links:
        pickled = pickling.dump_linked(values, links, classes)
    elif len(items) == 1 and kind != "class":
        pickled = items[0].loadable
    else:
        keys = [item.key for item in items]
        pickled = pickling.dump(values, names=keys, classes_by_value=classes)
    shared = pickled.shared if kind != "setting" else {}
    named = {item.key: item.value for item in items if item.is_name}
    # A class that is defined again is another one, though it may have the identity of the former.
    kinds = {id(each): pickled.memo[id(each)] for each in values if kind == "class"}
    tokens = sent_objects.assign_tokens({**shared, **kinds}, named)
    in_classes = shared.items() if kind == "class" else ()
    class_tokens = {key: tokens.of(index) for key, (index, obj) in in_classes if is_referable(obj)}
    sent_objects.note_in_classes(class_tokens.values())
    loadable = pickling.with_copies(pickled, values, tokens, classes) if links else pickled
    packed, parts = blobs.pack(loadable, items[0].memory_digests)
    message: NameGroup = {
        "shipment": uuid.uuid4().hex[:12],
        "names": [item.key for item in items],
        "digests": {item.key: item.digest for item in items},
        "kind": kind,
        "packed": packed,
        "together": len(items) > 1 or bool(links) or kind == "class",
        "tokens": None if links or not shared else _numbers(tokens),
        "cells": dict(pickled.cells),
        "by_name": [item.key for item in items if item.is_found_by_name],
    }
    models = {item.key: item.models for item in items if item.models}
    numbers = {key: tokens.of(index) for key, (index, _) in {**shared, **kinds}.items()}
    numbers |= links or {}
    contents = {item.key: each for item in items if (each := item.contents(numbers))}
    for item in items if kind == "name" else ():
        inside = item.pickled.shared.keys() & numbers.keys()
        sent_objects.note_in_name(item.key, [numbers[key] for key in inside])
    return PackedGroup(message, parts, shared, tokens, models, contents, named, class_tokens)
