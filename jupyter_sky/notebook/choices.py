"""What a line names, checked against what is there: ranks of a cluster, names of the notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks


def choose_ranks(
    cluster: Cluster, chosen: str | Sequence[int] | None, option: str
) -> tuple[int, ...]:
    """Return the ranks of ``cluster`` that were chosen by words or numbers.

    Raises
    ------
    UsageError
        When one of them is not there; the sentence begins with ``option``.
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


def check_names(names: Sequence[str], namespace: Mapping[str, Any], option: str) -> None:
    """Refuse names that the notebook does not have; the sentence begins with ``option``."""
    if missing := [name for name in names if name not in namespace]:
        raise UsageError(
            f"{option} {missing[0]}: the notebook has no {missing[0]}; define it first."
        )
