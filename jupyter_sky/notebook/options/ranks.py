"""The ranks of a cluster that options like ``--ranks`` and ``--stdout`` choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks


def choose_ranks(
    cluster: Cluster, chosen: str | Sequence[int] | None, option: str
) -> tuple[int, ...]:
    """Return the ranks of a cluster that a word or numbers choose.

    Parameters
    ----------
    cluster
        The cluster.
    chosen
        ``"all"`` or None, ``"head"``, ``"none"``, or numbers of ranks.
    option
        What the sentence of an error begins with, like ``--ranks``, or the command where that has
        several spellings.

    Raises
    ------
    UsageError
        When the cluster does not have one of the numbers.
    """
    if chosen in (None, "all"):
        return cluster.all_ranks
    if chosen == "head":
        return (0,)
    if chosen == "none":
        return ()
    ranks = tuple(int(rank) for rank in chosen or ())
    if wrong := [rank for rank in ranks if rank not in cluster.all_ranks]:
        raise UsageError(
            f"{option}: there is no rank {wrong[0]}, {cluster.name} has "
            f"{format_ranks(cluster.all_ranks)}."
        )
    return ranks


def shown_ranks(cluster: Cluster, chosen: Any, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of a run whose output is shown.

    Parameters
    ----------
    chosen
        As for `choose_ranks`, but ``None`` chooses the first rank, as does ``"head"``. Ranks that
        do not take part are left out: the choice may be a setting for all runs. If none is left,
        the first is shown.
    ranks
        The ranks that take part.

    Raises
    ------
    UsageError
        When the cluster does not have one of the numbers.
    """
    if chosen in (None, "head"):
        return tuple(ranks[:1])
    if chosen == "all":
        return tuple(ranks)
    named = choose_ranks(cluster, chosen, "--stdout")
    shown = tuple(rank for rank in named if rank in ranks)
    return shown if shown or not named else tuple(ranks[:1])


def first_ranks(cluster: Cluster, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the first of these ranks on each node."""
    nodes = (set(node.ranks).intersection(ranks) for node in cluster.state.nodes)
    return tuple(min(here) for here in nodes if here)


def on_nodes_of(cluster: Cluster, ranks: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Return those of these ranks that are on a node of one of the others."""
    nodes = [set(node.ranks) for node in cluster.state.nodes]
    there = {rank for node in nodes if not node.isdisjoint(others) for rank in node}
    return tuple(rank for rank in ranks if rank in there)
