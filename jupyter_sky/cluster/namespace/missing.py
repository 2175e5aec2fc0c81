"""Which ranks lack what a run needs, and which of these began with an empty namespace.

A rank that was started again, or was added, is given the notebook's values. Other ranks go on with
theirs as runs have left them: trained further, or bound anew. A cell that uses such a name on all
ranks computes with both, as in a mean of the losses of two different models, so it says so.

What a run before may bind is not known before that has ended. It is found out when the run has its
turn: what a rank was sent in any case would take the place of what it has bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from jupyter_sky.cluster.namespace.dependencies import Dependencies
from jupyter_sky.cluster.namespace.items.collector import ItemCollector
from jupyter_sky.cluster.namespace.items.item import NamespaceItem, class_key
from jupyter_sky.cluster.namespace.rank_values import BEFORE_RUNS, RunEffects
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.cluster.namespace.state_at_turn import StateAtTurn
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.formatting import format_list, format_ranks
from jupyter_sky.transport.protocol.messages import NameGroup

Lacking = Mapping[tuple[NamespaceItem, ...], list[int]]
"""The ranks that lack the same, by what they lack: they are sent the same."""

LeftItems = WeakValueDictionary[tuple[str, int, str], NamespaceItem]
"""Items that are left out until their runs have their turns, by key, identity and digest."""


def who_lacks(
    state: StateAtTurn,
    items: Sequence[NamespaceItem],
    ranks: Iterable[int],
    forced: Collection[str],
) -> Lacking:
    """Return which ranks have to be sent which items.

    Parameters
    ----------
    state
        What the ranks have.
    items
        What the run needs.
    ranks
        The ranks of the run.
    forced
        The keys of items that all of them are sent.
    """
    lacks = state.lacks
    lacking: dict[tuple[NamespaceItem, ...], list[int]] = {}
    for rank in ranks:
        missing = [each for each in items if each.key in forced or lacks(rank, each)]
        if missing:
            lacking.setdefault(tuple(missing), []).append(rank)
    return lacking


def keys_of(names: Collection[str], namespace: Mapping[str, Any]) -> frozenset[str]:
    """Return names, and the keys of the classes that they stand for."""
    found = (class_key(namespace.get(name)) for name in names)
    return frozenset({*names, *filter(None, found)})


def leave_out(
    state: StateAtTurn,
    items: Sequence[NamespaceItem],
    update: NamespaceUpdate,
    undecided: Collection[str],
    known: LeftItems,
) -> tuple[list[NamespaceItem], list[NamespaceItem]]:
    """Return what can be sent for a run when it is asked for, and what is left out until its turn.

    Parameters
    ----------
    state
        What the ranks have.
    items
        What the run needs.
    update
        What its ranks are sent; notes what is left out.
    undecided
        Names of which only the end of runs before it tells what ranks have.
    known
        What other updates have left out: thousands of calls may wait, with the same values.
    """
    left = [
        item
        for item in items
        if item.key in undecided and any(state.lacks(rank, item) for rank in update.ranks)
    ]
    update.effects.left_out.update(item.key for item in left)
    rest = [item for item in items if item not in left]
    return rest, [known.setdefault((each.key, each.identity, each.digest), each) for each in left]


def collector_of(update: NamespaceUpdate, dependencies: Dependencies) -> ItemCollector:
    """Return what has the values that an update is refreshed with.

    They are those that it has kept; else those of now, but for names that were left out.
    """
    if update.kept:
        return update.kept
    collector = dependencies.collector(dict(update.namespace), update.effects.cell)
    collector.take(update.left_items)
    return collector


def unbind(state: StateAtTurn, update: NamespaceUpdate, undecided: Collection[str]) -> None:
    """Add to an update the names that its ranks have to unbind before the run.

    These are names that the notebook has deleted, and names that the run may bind but does not
    read, and to which the notebook has assigned another value. If a rank kept its old value, it
    could not tell whether the run has bound the name, for example to the same number. Whether it is
    to unbind those that are undecided (`leave_out`) is known at the run's turn.
    """
    effects = update.effects
    effects.left_bound.update(effects.replaces.keys() & undecided)
    names = effects.replaces.keys() - effects.left_bound
    for rank in update.ranks:
        if (deleted := state.deleted(rank)) or names:
            update.unbind(rank, _replaced(state, rank, effects, names).union(deleted))


def take_out(remote_state: RemoteState, update: NamespaceUpdate) -> None:
    """Take ranks out of the groups of an update that are not to get these.

    A rank that is another process now is sent everything, in groups of its own. One that got a
    group in an earlier run goes on with what calls have made of it there.
    """
    effects = update.effects
    state = remote_state.at(BEFORE_RUNS)  # what ranks have surely got

    def is_for(rank: int, group: NameGroup) -> bool:
        if remote_state.is_gone(effects, rank):
            return False
        had = [state.value(rank, key) for key in group["names"]] if update.is_again else [None]
        return not all(value and value.run >= effects.number for value in had)

    for group in update.groups:
        group["ranks"] = [rank for rank in group["ranks"] if is_for(rank, group)]


def take_turn(remote_state: RemoteState, update: NamespaceUpdate, has_lost: bool) -> None:
    """Add to an update what else its ranks have to unbind, as it is the turn of the run.

    Where ranks have lost nothing, names that were not left out were decided when the run was asked
    for: what a run before has bound since is not replaced.
    """
    effects = update.effects
    update.left = None if has_lost else sorted(effects.left_out)
    # What the notebook has assigned since is not this run's matter.
    is_assigned_since = remote_state.is_assigned_since
    names = {name for name in effects.left_bound if not is_assigned_since(name, effects)}
    state = remote_state.at(effects.turn)
    for rank in update.ranks if names else ():
        update.unbind(rank, _replaced(state, rank, effects, names))
    effects.left_out.clear()
    effects.left_bound.clear()


def _replaced(
    state: StateAtTurn, rank: int, effects: RunEffects, names: Collection[str]
) -> set[str]:
    found = set()
    for name in effects.replaces.keys() & names:
        value = state.value(rank, name)
        if not value or value.is_outdated or value.replaces not in (None, effects.replaces[name]):
            found.add(name)
    return found


def given_anew(
    state: StateAtTurn, lacking: Lacking, ranks: Sequence[int], forced: Collection[str]
) -> dict[str, set[int]]:
    """Return the ranks that get the notebook's value of a name for the first time, by name.

    Only those that began with an empty namespace count, and only names of which another rank of the
    run may have a different value.
    """
    found: dict[str, set[int]] = {}
    for items, members in lacking.items():
        for rank in filter(state.began_empty, members):
            for item in items:
                if not item.key.isidentifier() or item.key in forced or state.value(rank, item.key):
                    continue
                if any(state.may_differ(other, item) for other in ranks):
                    found.setdefault(item.key, set()).add(rank)
    return found


def notice(given: Mapping[str, Collection[int]]) -> str:
    """Return what a cell says about ranks that are given the notebook's values; empty for none."""
    if not given:
        return ""
    ranks = set().union(*given.values())
    names = sorted(given)
    were = "were" if len(ranks) > 1 else "was"
    return (
        f"{format_ranks(ranks)} began empty and {were} given the notebook's "
        f"{format_list([f'`{name}`' for name in names])}, while other ranks have theirs as earlier "
        f"cells left them: `%sky push {' '.join(names)}` gives all ranks the notebook's"
    )
