"""Packing: pickles and hashes the values of names, and joins them to groups that are sent.

Each value is first pickled by itself, which tells whether it has changed since it was sent (by a
digest of its content), what else it needs, and with which values it shares objects. Those that are
sent are pickled again, in groups of values that share objects.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

from jupyter_sky.cluster.namespace.rank_values import RankValue
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import container_changes, model_changes, writes
from jupyter_sky.serialization.changes.container_changes import Contents
from jupyter_sky.serialization.changes.model_changes import HeldModels
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries, is_mutable, is_referable
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.serialization.pickler import in_main
from jupyter_sky.serialization.pickling import Pickled
from jupyter_sky.transport.protocol.messages import NameGroup, Packed

CLASS_PREFIX, MODULE_PREFIX = "class ", "module "
"""What the keys of items begin with that are no names."""


class NamespaceItem:
    """What is sent when it has changed: the value of a name, a class, a module, or a setting.

    Parameters
    ----------
    key
        See below.
    value
        The value, the class, or what the receiver is to install.
    digests
        Digests of memory, shared by all items of one update (see `blobs.pack`).
    used_by
        The user's function that uses it, if the cell does not name it itself.

    Attributes
    ----------
    key
        The name that it is bound to, or the full name of an attribute (`module_attributes`). Keys
        of other items have a space, so that they are no names: ``"class "`` and the class's
        identity, ``"module "`` and the module's name, or a kind of setting (`process_items`), such
        as ``"import paths"``.
    value
        As above.
    pickled
        The value, pickled by itself.
    sent_with
        For a class, the tokens of the objects in the group that it was packed with last.
    """

    sent_with: Mapping[int, int] = MappingProxyType({})

    def __init__(
        self, key: str, value: Any, digests: dict[tuple[int, int], str], used_by: str | None = None
    ) -> None:
        self.key = key
        self.value = value
        self._digests = digests
        name = value.__qualname__ if self.is_class else key
        classes = {self.class_identity} if self.is_class else ()
        self.pickled = pickling.dump(
            value, name, classes_by_value=classes, without_caches=True, used_by=used_by
        )

    def under(self, key: str) -> NamespaceItem:
        """Return an item of the same value under another key."""
        item = copy.copy(self)
        item.key = key
        return item

    @property
    def is_name(self) -> bool:
        """Whether it is bound to a name."""
        return " " not in self.key

    @property
    def is_class(self) -> bool:
        """Whether it is a class that other items need."""
        return self.key.startswith(CLASS_PREFIX)

    @property
    def class_identity(self) -> str:
        """The class's identity in pickles."""
        return self.key.removeprefix(CLASS_PREFIX)

    @property
    def is_found_by_name(self) -> bool:
        """Whether it is a class whose name stands for no other value in the notebook.

        The name may stand for a later version of the class, or for what a decorator has made of it,
        as ``@dataclass(slots=True)`` does.
        """
        if not self.is_class:
            return False
        stands_for = in_main(self.value.__qualname__)
        return stands_for is None or stands_for is self.value

    @property
    def kind(self) -> str:
        """What the receiver does with it: ``"name"``, ``"class"`` or ``"setting"``."""
        return "name" if self.is_name else "class" if self.is_class else "setting"

    @cached_property
    def packed(self) -> tuple[Packed, dict[str, memoryview]]:
        """The pickle as a message, and its large parts; it refers to classes by identity."""
        return blobs.pack(self.pickled, self._digests)

    @cached_property
    def digest(self) -> str:
        """The digest of its content, and of how often the notebook has written to its tensors."""
        return writes.digest_of_packed(self.packed[0], self.pickled.shared)

    @cached_property
    def models(self) -> HeldModels | None:
        """The models and optimizers of the value."""
        if not self.is_name:
            return None
        return model_changes.held(self.value, self.pickled.shared, self._digests)

    def contents(self, numbers: Mapping[int, int]) -> Contents | None:
        """Return what is in the containers of the value, of which these are the tokens."""
        if not self.is_name:
            return None
        models = self.models.models if self.models else ()
        return container_changes.contents(self.value, numbers, models, self._digests)

    def known_contents(self, sent_objects: SentObjects) -> Contents | None:
        """Return what is in the containers of a value that ranks have."""
        return self.contents(sent_objects.tokens_of(self.pickled.shared))

    def on_ranks(self, run: int, sent_objects: SentObjects) -> RankValue:
        """Return what ranks have of the value after a run."""
        return RankValue(self.digest, run, None, self.models, self.known_contents(sent_objects))

    def size(self, without: Collection[str]) -> int:
        """Return the bytes of the pickle and of its large parts; some parts are not counted.

        Parameters
        ----------
        without
            The digests of parts that are not counted.
        """
        message, parts = self.packed
        inline = [
            part for part in (message["stream"], *message["buffers"]) if isinstance(part, bytes)
        ]
        large = [part.nbytes for key, part in parts.items() if key not in without]
        return sum(map(len, inline)) + sum(large)

    @property
    def loadable(self) -> Pickled:
        """The pickle that is sent; its receiver has to load the classes in it first."""
        if self.pickled.omitted:
            return pickling.dump(self.value, classes_by_value=())
        return self.pickled


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
        The models of its values, and what is in their containers, by name.
    named
        Its values, by name.
    """

    message: NameGroup
    blobs: Mapping[str, memoryview]
    shared: MemoEntries
    tokens: Tokens
    models: Mapping[str, HeldModels]
    contents: Mapping[str, Contents]
    named: Mapping[str, Any]

    @property
    def digests(self) -> Iterator[tuple[int, str]]:
        """The digests of its values, with their identities."""
        return ((id(each), self.message["digests"][key]) for key, each in self.named.items())

    def as_delivered(self, run: int) -> dict[str, RankValue]:
        """Return what a rank has of it, by name or key, once it was sent for a run."""
        return {
            key: RankValue(digest, run, None, self.models.get(key), self.contents.get(key))
            for key, digest in self.message["digests"].items()
        }

    @cached_property
    def tokens_before(self) -> set[int]:
        """The tokens of the containers in it that had been sent before."""
        known = set(self.tokens.known.values())
        return known & {token for each in self.contents.values() for token in each}

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The tokens of its objects, by identity."""
        return {key: self.tokens.of(index) for key, (index, _) in self.shared.items()}


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
    tokens = sent_objects.assign_tokens(shared, named)
    if kind == "class":
        items[0].sent_with = {
            key: tokens.of(index) for key, (index, obj) in shared.items() if is_referable(obj)
        }
        sent_objects.note_in_classes(items[0].sent_with.values())
    loadable = pickling.with_copies(pickled, values, tokens, classes) if links else pickled
    packed, parts = blobs.pack(loadable, items[0]._digests)
    message: NameGroup = {
        "shipment": uuid.uuid4().hex[:12],
        "names": [item.key for item in items],
        "digests": {item.key: item.digest for item in items},
        "kind": kind,
        "packed": packed,
        "together": len(items) > 1 or bool(links) or kind == "class",
        "tokens": None if links or not shared else [tokens.first, dict(tokens.known)],
        "cells": dict(pickled.cells),
        "by_name": [item.key for item in items if item.is_found_by_name],
    }
    models = {item.key: item.models for item in items if item.models}
    numbers = {key: tokens.of(index) for key, (index, _) in shared.items()} | dict(links or {})
    contents = {item.key: each for item in items if (each := item.contents(numbers))}
    for item in items if kind == "name" else ():
        inside = item.pickled.shared.keys() & numbers.keys()
        sent_objects.note_in_name(item.key, [numbers[key] for key in inside])
    return PackedGroup(message, parts, shared, tokens, models, contents, named)


def class_key(value: Any) -> str | None:
    """Return the key of a class of the notebook; ``None`` for any other value."""
    if not isinstance(value, type) or value.__module__ != "__main__":
        return None
    with suppress(Exception):  # of any kind: it cannot be pickled
        return CLASS_PREFIX + pickling.class_identity(value)
    return None


def may_share(value: Any) -> bool:
    """Return whether a value may share an object with another one, as far as its type tells."""
    if isinstance(value, type):
        return value.__module__ == "__main__"
    return is_mutable(value) or isinstance(value, (tuple, FunctionType, MethodType))
