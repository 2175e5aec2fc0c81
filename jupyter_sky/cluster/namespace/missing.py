"""Which ranks lack what a run needs, and which of these began with an empty namespace.

A rank that was started again, or was added, is given the notebook's values. Other ranks go on with
theirs as runs have left them: trained further, or bound anew. A cell that uses such a name on all
ranks computes with both, as in a mean of the losses of two different models, so it says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.formatting import format_list, format_ranks

Lacking = Mapping[tuple[NamespaceItem, ...], list[int]]
"""The ranks that lack the same, by what they lack."""


def who_lacks(
    state: RemoteState,
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


def given_anew(
    state: RemoteState, lacking: Lacking, ranks: Sequence[int], forced: Collection[str]
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
