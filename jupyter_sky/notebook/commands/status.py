"""``%sky status``: the clusters of this person, and the ranks of the current one, as text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.probe import ProbePhase, ProbeResult, probe
from jupyter_sky.cluster.snapshot import RunState
from jupyter_sky.cluster.state import ClusterState
from jupyter_sky.formatting import aligned, format_dollars, format_duration, format_ranks
from jupyter_sky.providers import providers

_HEAD = ("", "cluster", "provider", "nodes × ranks", "state", "up", "cost", "running")


def listing(clusters: Iterable[Cluster]) -> list[dict[str, Any]]:
    """Return all clusters of the registry as plain data, for programs; see `report`."""
    known = {cluster.id: cluster for cluster in clusters}
    rows = registry.rows()
    return [
        {
            "id": row.id,
            "name": row.name,
            "provider": row.provider,
            "nodes": row.spec["nodes"],
            "ranks": sum(len(node["ranks"]) for each in row.machines for node in each["nodes"]),
            "created": row.created,
            "state": glance.phase,
            "busy": list(glance.busy),
        }
        for row, glance in zip(rows, _glances(rows, known), strict=True)
    ]


def report(clusters: Iterable[Cluster], current: str) -> str:
    """Return a table of all clusters of the registry, and the ranks of the current one.

    Parameters
    ----------
    clusters
        Those that this notebook is connected to; of others their agents are asked.
    current
        The name of the cluster that cells mean.
    """
    now = time.time()
    rows = registry.rows()
    if not rows:
        return "No cluster: `%%sky --nodes 4` above a cell starts one."
    known = {cluster.id: cluster for cluster in clusters}
    glances = {row.id: each for row, each in zip(rows, _glances(rows, known), strict=True)}
    lines = [
        (
            "*" if row.name == current else "",
            row.name,
            row.provider,
            _size(row),
            glances[row.id].phase,
            format_duration(now - row.created)
            if glances[row.id].phase is not ProbePhase.GONE
            else "",
            _cost(row, now),
            _running(known.get(row.id), glances[row.id]),
        )
        for row in rows
    ]
    text = "\n".join(aligned([_HEAD, *lines]))
    here = next((each for each in known.values() if each.name == current), None)
    return "\n".join([text, *_ranks(here.state)]) if here else text


def _glances(rows: Sequence[registry.Row], known: Mapping[str, Cluster]) -> list[ProbeResult]:
    """Return how each cluster is: as far as is known here, or as its agents say."""
    strange = [row for row in rows if row.id not in known]
    found = {row.id: each for row, each in zip(strange, probe(strange, providers()), strict=True)}
    found |= {identity: ProbeResult.of_state(each.state) for identity, each in known.items()}
    return [found[row.id] for row in rows]


def _size(row: registry.Row) -> str:
    ranks = [len(node["ranks"]) for machine in row.machines for node in machine["nodes"]]
    ranks = ranks or [row.spec["procs_per_node"] or 1]
    each = f"{min(ranks)}-{max(ranks)}" if min(ranks) < max(ranks) else f"{ranks[0]}"
    return f"{row.spec['nodes']} × {each}"


def _cost(row: registry.Row, now: float) -> str:
    cost = row.cost(now)
    return (
        ""
        if cost is None
        else f"{format_dollars(cost)}, {format_dollars(row.price or 0.0)} an hour"
    )


def _running(cluster: Cluster | None, glance: ProbeResult) -> str:
    if not glance.busy:
        return "`%sky gc` removes what is left" if glance.phase is ProbePhase.GONE else ""
    run = cluster.snapshot()["run"] if cluster else None
    where = format_ranks(glance.busy)
    if run is None or run["state"] is not RunState.RUNNING:
        return where
    return f"{run['title'] or 'a cell'}, {where}, for {format_duration(run['seconds'])}"


def _ranks(state: ClusterState) -> Iterator[str]:
    """Describe the ranks; those of a node that are alike share a line."""
    nodes = {node.node: node for node in state.nodes}
    alike = itertools.groupby(state.ranks, key=lambda rank: (rank.node, rank.phase, rank.trouble))
    for (number, phase, trouble), group in alike:
        node = nodes[number]
        where = f"node {number}"
        if node.name or not node.addr.startswith("127."):
            where += f" ({node.host})"
        what = [format_ranks([rank.rank for rank in group]), where, node.gpu or "CPU", phase]
        yield "   " + "  ".join([*what, *([f"({trouble})"] if trouble else [])])
