"""Names that stand for what ranks have under names which are about to mean something else there.

After ``best = model`` in the notebook, a cell that only assigns or reads another ``model`` would
leave the model that ranks have trained without a name on them, and ``best`` would be sent to the
next cell as it is in the notebook. So ranks are told of ``best`` before: it takes a few bytes. So
it is with ``models = [model]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.items.predefined import of_user
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.object_tokens.sent import SentObjects

_SEARCHED = 100
"""Parts of a container above which it is bulk data, in which no model is looked for."""

_SMALL = 100_000
"""Bytes that may be sent for a name that the cell does not need."""


def renamed(
    update: NamespaceUpdate,
    found: Sequence[NamespaceItem],
    collector: ItemCollector,
    state: StateAtTurn,
    sent_objects: SentObjects,
) -> Iterator[NamespaceItem]:
    """Yield the items of these names, but for those that are sent anyway.

    Parameters
    ----------
    update
        What ranks are sent for a run.
    found
        The items that its cell needs.
    collector
        Pickles the notebook's values.
    state, sent_objects
        What ranks have.
    """
    named, cell = {item.key for item in found}, update.effects.cell
    changing = {
        *cell.writes.difference(cell.only_augmented),
        *(name for names in update.outdated.values() for name in names),
        *(name for name in named if any(_is_outdated(state, rank, name) for rank in update.ranks)),
    }
    former = [name for name in changing if _had_notebooks(state, update.ranks, name)]
    if not former:
        return

    def is_at_stake(value: Any, name: str = "") -> bool:
        token = sent_objects.token_of(value)
        if token is None or (name and sent_objects.may_be_in(name, {token})):
            return False
        return any(sent_objects.may_be_in(each, {token}) for each in former)

    for name, value in of_user(collector.namespace).items():
        if name in named or name.startswith("_") or ":" in name:
            continue
        parts = _parts(value)
        if all(_has_now(state, rank, name) for rank in update.ranks):
            are_at_stake = any(is_at_stake(part, name) for part in parts)  # put there since
        else:
            are_at_stake = is_at_stake(value) or any(map(is_at_stake, parts))
        if are_at_stake:
            with suppress(UsageError):  # the notebook's value cannot be pickled any more
                item = collector.item(name)
                if any(_is_a_mere_link(state, sent_objects, rank, item) for rank in update.ranks):
                    yield item


def _has_now(state: StateAtTurn, rank: int, name: str) -> bool:
    """Return whether a rank has a value under a name that the notebook has not assigned since."""
    return state.value(rank, name) is not None and not _is_outdated(state, rank, name)


def _is_outdated(state: StateAtTurn, rank: int, name: str) -> bool:
    value = state.value(rank, name)
    return value is not None and value.is_outdated


def _had_notebooks(state: StateAtTurn, ranks: Sequence[int], name: str) -> bool:
    """Return whether a rank has a value of the notebook's under a name, of now or before."""
    there = (state.value(rank, name) for rank in ranks)
    return any(value is not None and value.replaces is None for value in there)


def _parts(value: Any) -> Iterable[Any]:
    """Return what is in a container, unless it is bulk data."""
    if type(value) not in (list, tuple, dict) or len(value) > _SEARCHED:
        return ()
    return value.values() if isinstance(value, dict) else value


def _is_a_mere_link(
    state: StateAtTurn, sent_objects: SentObjects, rank: int, item: NamespaceItem
) -> bool:
    """Return whether a rank has nearly all of what is in a value that it lacks under this name."""
    if _has_now(state, rank, item.key):
        if not state.lacks(rank, item) or state.has_rebound(rank, item.key, item.value):
            return False
    elif (digest := sent_objects.digest_on(rank, item.value)) and digest != item.digest:
        return False  # the notebook has changed it too: it is sent when it is needed
    links = sent_objects.known_to(rank, item.pickled.shared)
    if not links:
        return False
    linked = pickling.dump_linked([item.value], links)
    return len(linked.stream) + sum(part.nbytes for part in linked.buffers) <= _SMALL
