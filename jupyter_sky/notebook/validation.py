"""Checks what was typed against the cluster that runs, its ranks, and the notebook's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.notebook.errors import pull_line
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.providers.ssh.connection.targets import parse


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
        What the sentence of an error begins with, like ``--ranks``.

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
    """Return the ranks whose output is shown: by default the head, or the first of the run."""
    if chosen is None and ranks:
        return (ranks[0],)
    return choose_ranks(cluster, chosen, "--stdout")


def check_names(
    names: Sequence[str], namespace: Mapping[str, Any], option: str, cluster: Cluster | None
) -> None:
    """Refuse names that the notebook does not have.

    Parameters
    ----------
    names
        The names.
    namespace
        The notebook's.
    option
        What the sentence of an error begins with, like ``--in``.
    cluster
        The cluster whose ranks may have them instead.

    Raises
    ------
    UsageError
        When the notebook does not have one of them.
    """
    for name in names:
        if name not in namespace:
            line = cluster and pull_line(cluster, name)
            instead = f"only the ranks have it: `{line}` brings it" if line else "define it first"
            raise UsageError(f"{option} {name}: the notebook has no {name}; {instead}.")


def check_fit(cluster: Cluster, options: CellOptions, hosts: tuple[str, ...]) -> None:
    """Refuse options that describe another cluster than the one that is running.

    Parameters
    ----------
    cluster
        The cluster that is running.
    options
        The options of the cell.
    hosts
        The hosts of the cell, without names of groups.

    Raises
    ------
    UsageError
        With the commands to choose from.
    """
    has: Mapping[str, Any] = {
        "--nodes": len(cluster.state.nodes),
        "--procs-per-node": len(cluster.state.nodes[0].ranks),
        "--provider": cluster.provider.name,
        "--gpu": cluster.spec.accelerator and str(cluster.spec.accelerator).lower(),
        "--hosts": ",".join(node.name or "" for node in cluster.state.nodes),
    }
    asked = {
        "--nodes": options.nodes,
        "--procs-per-node": options.procs_per_node,
        "--provider": options.provider,
        "--gpu": options.gpu and str(accelerators.parse(options.gpu)).lower(),
        "--hosts": ",".join(map(str, parse(hosts))) or None,
    }
    for option, value in asked.items():
        if value is not None and value != has[option]:
            change = "`%sky down` first to replace it"
            if option == "--nodes":
                change = f"`%sky scale {value}` to change it"
            raise UsageError(
                f"cluster {cluster.name} is running with {option} {has[option]}, and the cell asks "
                f"for {value}: leave {option} out to use it, type {change}, or add "
                "`--cluster NAME` to start a second one."
            )
