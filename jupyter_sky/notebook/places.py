"""Which cluster to start for a cell, at which of several places, and how long it stays up."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory.stops import limit_of
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.errors import Declined, NameTaken, SkyError
from jupyter_sky.formatting import format_dollars, format_duration
from jupyter_sky.notebook.cluster_factory import (
    ClusterFactory,
    ClusterPlace,
    check_provider_options,
    describes_cluster,
)
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.validation import describes_another, start_again_with
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.choice import Selection, in_order
from jupyter_sky.providers.cloud import Queueing, Stoppable
from jupyter_sky.providers.ssh.connection.targets import parse

_LONGER = {"local": "c.Sky.grace = '8h'", "aws": "c.Sky.aws = {'grace': 28800}"}
"""The setting of how long a cluster stays that nobody uses, by its provider."""

_LEAST = 0.02
"""The part of ``--max-cost`` with less of which a lost cluster is not worth starting again."""


def start_at_one(
    places: Sequence[ClusterPlace],
    selection: Selection | None,
    timeouts: Timeouts,
    progress: Progress,
) -> tuple[ClusterPlace, Cluster]:
    """Start a cluster at the first place that has nodes for it; return the cluster and the place.

    Parameters
    ----------
    places
        The possible places.
    selection
        Which place to try first; see `usual_selection`.
    timeouts
        How long things may take.
    progress
        Called with the present step.

    Raises
    ------
    SkyError
        If it starts nowhere; nothing is left running then.
    """
    if len(places) == 1:
        return places[0], _start(places[0], timeouts, progress)
    progress("comparing prices")
    found, refused = in_order(places, selection or usual_selection(places))
    print("; ".join(f"{each.name} {_cost(price)}" for each, price in found))
    for reason in refused:
        print(f"not {reason}")
    for at, (place, price) in enumerate(found):
        if at:
            print(f"now {place.name}, which {_cost(price)}")
        try:
            return place, _start(place, timeouts, progress)
        except (Declined, NameTaken):
            raise
        except SkyError as error:
            # Lines after the first have details, like each type that AWS lacks.
            refused.append(f"{place.name}: {str(error).splitlines()[0]}")
            print(f"not {refused[-1]}")
    reasons = "; ".join(reason.rstrip(".") for reason in refused)
    raise SkyError(f"no nodes at any of {len(places)} places: {reasons}.")


def mean_former(
    factory: ClusterFactory, choices: Sequence[CellOptions], former: CellOptions | None
) -> bool:
    """Return whether options all mean the cluster that this notebook had before with ``former``."""

    def means(options: CellOptions, former: CellOptions) -> bool:
        if not describes_cluster(options):
            return True
        return not describes_another(factory.with_settings_for(options, former), former)

    return former is not None and all(means(each, former) for each in choices)


def start_options(
    factory: ClusterFactory,
    options: CellOptions,
    former: CellOptions | None,
    ended: CellOptions | None,
) -> CellOptions:
    """Return the options to start a cluster with.

    Parameters
    ----------
    factory
        Knows the settings.
    options
        Those of the cell.
    former
        Those of the cluster that this notebook had before.
    ended
        Those of a cluster of another kernel that was found to be gone.
    """
    if former is not None and mean_former(factory, [options], former):
        # It comes back as it was. Where that costs money, the price is shown before it starts.
        completed = start_again_with(options, former)
        check_provider_options(options, completed)
        return completed
    return factory.complete(options, ended)


def say_left_out(name: str, places: Sequence[ClusterPlace]) -> None:
    """Say what nodes will not have at these places, each thing once."""
    for each in dict.fromkeys(each for place in places for each in place.left_out):
        print(f"{name}: {each}", file=sys.stderr)


def usual_selection(places: Sequence[ClusterPlace]) -> Selection:
    """Return which place to try first: in the order of regions, or else the cheapest."""
    is_one = len({place.provider.name for place in places}) == 1
    regions = {place.options.region for place in places}
    return "first" if is_one and len(regions) > 1 else "cheapest"


def unused_end(cluster: Cluster) -> str:
    """Describe when a cluster ends by itself that nobody uses; empty if it never does."""
    name, grace = cluster.provider.name, getattr(cluster.provider, "grace", None)
    if grace is None:
        return ""
    ends = "ends"
    if isinstance(cluster.provider, Stoppable):
        ends = "stops" if cluster.spec.autostop else "ends with its disks"
    longer = (
        f": for longer, put `{_LONGER[name]}` into ipython_config.py" if name in _LONGER else ""
    )
    return (
        f"a cluster of {name} nodes {ends} {format_duration(grace)} after the last notebook or "
        f"program has left it, unless something runs there{longer}"
    )


def stays_up(cluster: Cluster, why: str = "") -> str:
    """Say that a cluster stays up, and perhaps why; what ends it, and when it ends by itself."""
    ends = [f"`jupyter sky down {cluster.name}` ends it", unused_end(cluster)]
    return f"{cluster.name} stays up{why}: {'; '.join(filter(None, ends))}"


def with_rest(options: CellOptions, lost: Cluster, row: RegistryRow | None) -> CellOptions:
    """Return options that start a lost cluster again, with what is left of ``--max-cost``.

    Parameters
    ----------
    options
        The options that it was started with.
    lost
        The cluster.
    row
        What the registry had of it, with the limit that it was given later or was left to it.

    Raises
    ------
    SkyError
        If hardly anything is left.
    """
    limit = limit_of(row) if row else None
    if limit is None:
        limit = getattr(lost.provider, "max_cost", None)  # typed, or a setting
    if limit is None:
        return options
    left = limit - (lost.snapshot()["cluster"]["cost"] or 0.0)
    if left < _LEAST * limit:
        raise SkyError(
            "--max-cost is spent: the cell is not run again. Run it with a higher one to go on."
        )
    return replace(options, max_cost=left)


def without_nodes(
    options: CellOptions, hosts: tuple[str, ...], cluster: Cluster, lost: Collection[str]
) -> CellOptions | None:
    """Return the options of a lost cluster without some of its nodes.

    Parameters
    ----------
    options
        The options that it was started with.
    hosts
        The named hosts.
    cluster
        The cluster.
    lost
        The nodes to leave out.

    Returns
    -------
    CellOptions or None
        ``None`` if no node is left, or if a queue would have given others in their place.
    """
    if isinstance(cluster.provider, Queueing) and cluster.provider.gives_any_nodes:
        return None
    if not hosts:
        nodes = len(cluster.state.nodes)
        return replace(options, nodes=nodes - len(lost)) if nodes > len(lost) > 0 else None
    named = {host: parse([host])[0] for host in hosts}
    left = tuple(host for host, at in named.items() if not {at.name, str(at)} & {*lost})
    return replace(options, hosts=left, nodes=None) if left and left != hosts else None


def _start(place: ClusterPlace, timeouts: Timeouts, progress: Progress) -> Cluster:
    return Cluster.start(place.spec, place.provider, place.runtime_env, progress, timeouts)


def _cost(price: float | None) -> str:
    if price is None:
        return "has an unknown price"
    return f"costs {format_dollars(price)} an hour" if price else "costs nothing"
