"""Values that are sent again though their content is what was sent.

After ``counts["seen"] = 0`` in a cell that is run again, ranks may have something else there, and
after ``del table.rows``, they have the value of the cached property that came with the table.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_sky.analysis.call_changes import changed_objects
from jupyter_sky.analysis.labels import EACH, EVERYTHING, ITEMS, is_item, method_of
from jupyter_sky.analysis.object_changes import FunctionCall, ObjectChange
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import CLASS_PREFIX, NamespaceItem, may_share
from jupyter_sky.cluster.namespace.rank_values import RankValue
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.changes import container_changes, frames, writes
from jupyter_sky.serialization.changes.model_parts import is_set_by, set_parts, within
from jupyter_sky.serialization.models import keras_models
from jupyter_sky.serialization.object_tokens.kinds import has_attributes_of_user, is_plain
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.pickler import class_of
from jupyter_sky.serialization.user_modules import is_user_code


@dataclass(frozen=True)
class SetObject:
    """An object that the notebook has set.

    Attributes
    ----------
    value
        The object.
    part
        The label of what was set in it (see `ObjectChange`).
    """

    value: Any
    part: str | None


def set_objects(
    changes: Iterable[ObjectChange | FunctionCall], namespace: Mapping[str, Any]
) -> Iterator[SetObject]:
    """Yield what a cell of the notebook has set, as its syntax tells, and the user's functions'."""
    for obj, part in changed_objects(changes, namespace, is_user_code):
        yield SetObject(obj, part)


@dataclass
class _Held:
    """An object that was set, if it was found, and the values that it is in."""

    obj: Any = None
    items: list[NamespaceItem] = field(default_factory=list)


class SetAgain:
    """Keeps the objects that the notebook has set, by their tokens, until something is sent.

    It belongs to `NamespaceSync`, whose lock has to be held.

    Parameters
    ----------
    remote_state
        What the ranks have.
    sent_objects
        The objects that they have.
    """

    def __init__(self, remote_state: RemoteState, sent_objects: SentObjects) -> None:
        self._remote_state = remote_state
        self._sent_objects = sent_objects
        self._parts: dict[int, set[str | None]] = {}
        self._cached: dict[str, Sequence[Mapping[str, object]]] = {}

    def note(self, changes: Iterable[SetObject]) -> None:
        """Note objects that the notebook has set, or parts of them."""
        waiting = [*changes]
        seen: set[tuple[int, str | None]] = set()
        while waiting:
            each = waiting.pop()
            if (id(each.value), each.part) in seen:
                continue
            seen.add((id(each.value), each.part))
            if (method := method_of(each.part)) and not is_set_by(method, each.value):
                continue  # no method of torch's
            if each.part == ITEMS and not _is_memory(each.value):
                continue
            if each.part in (None, EACH, ITEMS):
                writes.note(each.value)
            waiting.extend(SetObject(part, each.part) for part in within(each.value, each.part))
            if (token := self._sent_objects.token_of(each.value)) is not None:
                self._parts.setdefault(token, set()).add(each.part)

    def apply(self, collector: ItemCollector, state: StateAtTurn) -> None:
        """Have what was set count as changed, so that it is sent again, where ranks have it."""
        if not self._parts:
            return
        held = self._find(collector, state)
        parts = {id(each.obj): self._parts[token] for token, each in held.items() if each.items}
        holders = {id(each.obj): {item.key for item in each.items} for each in held.values()}
        in_models = self._mark_in_models(holders, parts)
        left = {
            token: each
            for token, each in held.items()
            if id(each.obj) not in in_models and not self._set_parts(token, each)
        }
        for each in left.values():
            self._assign(each)
        self._forget_objects(left)

    def _find(self, collector: ItemCollector, state: StateAtTurn) -> dict[int, _Held]:
        """Return the objects that were set, by token, with the values that hold them on ranks."""
        held = {token: _Held() for token in self._parts}
        found: dict[str, NamespaceItem] = {}
        for name in state.names_anywhere():
            value = collector.namespace.get(name)
            kind = class_of(name.removeprefix(CLASS_PREFIX))
            with suppress(UsageError):  # it cannot be pickled any more
                if kind is not None:
                    if self._sent_objects.are_in_class(kind, self._parts):
                        found[name] = collector.class_item(name, kind)
                elif (
                    may_share(value)
                    and not isinstance(value, type)
                    and self._sent_objects.may_be_in(name, self._parts)
                ):
                    found[name] = collector.item(name)
        for item in found.values():
            objects = item.objects
            for identity, token in self._sent_objects.tokens_of(objects).items():
                if token in held:
                    held[token].items.append(item)
                    held[token].obj = objects[identity][1]
        return held

    def _set_parts(self, token: int, held: _Held) -> bool:
        """Have parts of an object count as changed; return whether it need not be sent as a whole.

        It has to be if something was set in it of which it is not known what ranks have.
        """
        is_replaced = is_replaceable(held.obj)
        parts = {part for part in self._parts[token] if not method_of(part)}
        if not is_replaced:
            parts -= {None, EVERYTHING, EACH}
        if not parts:
            return True
        contents = held.items[0].known_contents(self._sent_objects) if held.items else None
        keys = {item.key for item in held.items}
        now = (contents or {}).get(token)
        is_known = self._mark_parts(keys, token, parts, now)
        if is_known and is_replaced:
            self._remote_state.assign_over_own(keys)
        return is_known or not is_replaced

    def _assign(self, held: _Held) -> None:
        """Have values count as assigned that hold an object, or the part of them that it is."""
        keys = {item.key for item in held.items}
        if _is_memory(held.obj):
            inside = {item.key for item in held.items if item.value is not held.obj}
            keys -= self._mark_values(inside)
        self._remote_state.assign(keys)

    def _mark_parts(
        self,
        keys: Collection[str],
        token: int,
        parts: Collection[str | None],
        now: Mapping[str, str] | None,
    ) -> bool:
        """Have parts of a container count as changed; return whether ranks need not be sent it.

        It is known then what was in the notebook's values that they have.

        Parameters
        ----------
        keys
            The names of the values that the container is in.
        token
            The container's.
        parts
            The labels of the parts.
        now
            What is in the container.
        """

        def revised(key: str, value: RankValue) -> RankValue:
            if not value.contents or token not in value.contents:
                return value
            # If something else has changed in it, that is probably what was set.
            same = value.contents[token] == now
            labels = {part or EVERYTHING for part in parts if part not in (None, EACH) or same}
            if EACH in labels:
                labels.update(filter(is_item, now or ()))
            if not (labels := labels - {EACH}):
                return value
            contents = container_changes.without(value.contents, token, labels)
            if key in keys and not value.is_outdated:
                return value.as_changed(contents=contents)
            return replace(value, contents=contents)

        values = [*self._remote_state.everything()]
        self._remote_state.revise({key for key, _ in values}, revised)
        holding = [each.contents for key, each in values if key in keys and each.is_notebooks]
        # The notebook may have put it into others of them since.
        is_in = [token in contents for contents in holding if contents is not None]
        return len(is_in) == len(holding) and (any(is_in) or not holding)

    def _mark_in_models(
        self, holders: Mapping[int, Set[str]], parts: Mapping[int, Set[str | None]]
    ) -> set[int]:
        """Have parts of models count as changed; return the identities of what is in models.

        Parameters
        ----------
        holders
            The names of the values in which something was set, by its identity.
        parts
            The labels of what was set in it, by its identity.
        """
        keys = set().union(*holders.values())
        everything = self._remote_state.everything()
        held = [each for key, value in everything if key in keys and (each := value.models)]
        distinct = {id(models): models for models in held}  # which ranks share
        now = {each: set_parts(models, parts) for each, models in distinct.items()}
        found = {each for _, identities in now.values() for each in identities}

        def revised(key: str, value: RankValue) -> RankValue:
            if id(value.models) in now:
                return value.as_changed(models=now[id(value.models)][0])
            return value.as_changed() if key in of_found and value.is_notebooks else value

        if found:
            of_found = set().union(*(holders.get(each, ()) for each in found))
            # All are sent: others would refer to what ranks have of one that is not, like a
            # schedule, or a parameter that has a name of its own.
            self._remote_state.revise(keys, revised)
        return found

    def _mark_values(self, keys: Collection[str]) -> set[str]:
        """Have values count as changed, of which parts are compared; return their names.

        They are those of which it is known on all ranks what was in them.
        """
        everything = self._remote_state.everything()
        known = {*keys} - {key for key, value in everything if not value.contents}
        self._remote_state.revise(known, lambda key, value: value.as_changed())
        return known

    def note_sent(self, items: Iterable[NamespaceItem]) -> None:
        """Note the values of cached properties that are sent with values."""
        self._cached.update({item.key: item.pickled.omitted for item in items})

    def note_dropped(self, items: Iterable[NamespaceItem], time: int) -> None:
        """Have values count as assigned whose properties are not cached any more as they were.

        They were dropped before that time, at which the run was asked for that needs them.
        """
        dropped = [item for item in items if self._has_dropped(item)]
        if dropped:
            self._remote_state.assign([item.key for item in dropped], time)
            tokens = (self._sent_objects.token_of(item.value) for item in dropped)
            self._forget_objects({token for token in tokens if token is not None})

    def _has_dropped(self, item: NamespaceItem) -> bool:
        # The same content has the same objects, in the same order.
        pairs = zip(self._cached.get(item.key, ()), item.pickled.omitted, strict=False)
        return any(not former.items() <= now.items() for former, now in pairs)

    def _forget_objects(self, tokens: Collection[int]) -> None:
        self._sent_objects.drop(tokens, self._parts)
        self._parts.clear()


def is_replaceable(obj: Any) -> bool:
    """Return whether ranks can be sent an object as a whole because something is assigned in it.

    What other objects do with an item is their matter, and ranks may have trained what they hold.
    """
    if isinstance(obj, dict | list | set | deque | bytearray) or _is_memory(obj):
        return True
    if isinstance(obj, functools._lru_cache_wrapper):
        return True  # its cache was cleared, which is no part of what is sent
    if keras_models.is_saved(obj) or isinstance(obj, random.Random) or frames.is_pandas(obj):
        return True
    if not has_attributes_of_user(obj):
        return False
    # Nothing but numbers and texts, as in what configures a training or counts its steps.
    parts = [*vars(obj).values()]
    return is_plain(parts) and not any(isinstance(each, dict | list | set) for each in parts)


def _is_memory(obj: Any) -> bool:
    """Return whether an object is one block of data or a generator; parameters are of models."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy and isinstance(obj, (numpy.ndarray, numpy.random.RandomState)):
        return True
    if frames.is_pandas(obj) and not frames.is_frame(obj):
        return True
    if torch is None:
        return False
    return isinstance(obj, torch.Generator) or (type(obj) is torch.Tensor and obj.is_leaf)
