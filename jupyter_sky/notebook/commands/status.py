"""``%sky status``, ``costs`` and ``panel``: the user's clusters and their ranks."""

from __future__ import annotations

import itertools
import json
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TypedDict

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.cost_meter import Unit
from jupyter_sky.cluster.inventory import owed_ends, owed_runs, registry, stops
from jupyter_sky.cluster.inventory.probe import ProbePhase, ProbeResult, probe
from jupyter_sky.cluster.inventory.stops import ClusterStopped
from jupyter_sky.cluster.inventory.storage import ledger
from jupyter_sky.cluster.inventory.storage.row import Broken, RegistryRow
from jupyter_sky.cluster.snapshot import RunState
from jupyter_sky.cluster.state import ClusterState
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import (
    aligned,
    format_cost,
    format_count,
    format_dollars,
    format_duration,
    format_ranks,
)
from jupyter_sky.notebook.attached import attached_volumes
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.commands.life.stops import disks_cost
from jupyter_sky.notebook.errors import NONE_RUNNING, no_cluster
from jupyter_sky.providers import providers

_HEAD = ("", "cluster", "provider", "nodes × ranks", "state", "up", "cost", "run")
_DAYS = 30


class StatusEntry(TypedDict):
    """A cluster in the output of ``--json``.

    Attributes
    ----------
    created
        Seconds since the epoch.
    state
        A `jupyter_sky.cluster.inventory.probe.ProbePhase`.
    busy
        The ranks that run something.
    run
        The title of what runs there, as far as it is known.
    waiting
        How many runs wait for their turn.
    """

    id: str
    name: str
    provider: str
    nodes: int
    ranks: int
    created: float
    state: str
    busy: list[int]
    run: str
    waiting: int


class CostEntry(TypedDict):
    """What a cluster has cost at a place on a day, in the output of ``costs --json``.

    Attributes
    ----------
    day
        Of this computer's time zone, as in ``2026-01-31``.
    hours
        How long it was up.
    gpu_hours, node_hours
        The hours of its GPUs, or of its nodes without, where these count.
    at_most
        Whether it may have been less: it ended unseen.
    """

    day: str
    cluster: str
    where: str
    hours: float
    gpu_hours: float
    node_hours: float
    dollars: float
    at_most: bool


def status(context: CommandContext, options: Namespace) -> None:
    """Print a table of all clusters or one, or their list as JSON."""
    session, name = context.session, options.name
    if name and name not in (row.name for row in registry.read()):
        raise UsageError(no_cluster(name))
    if options.json:
        print(json.dumps(_entries(session.connected_clusters(), name), indent=2))
        return
    trouble = ""
    try:
        if not session.starting():
            session.find()
    except ClusterStopped:
        pass  # the table says so
    except SkyError as error:
        trouble = f"{error}"
    print(_table(session.connected_clusters(), session.current_name, name))
    for owed in owed_ends.read():
        print(owed)
    if trouble:
        print(trouble)


def costs(context: CommandContext, options: Namespace) -> None:
    """Print what clusters have cost, in hours and dollars, by day and cluster, or that as JSON."""
    days = options.days or _DAYS
    found = ledger.by_day(registry.all_spent(), days)
    if options.json:
        print(json.dumps([_cost_entry(*key, total) for key, total in found.items()], indent=2))
        return
    if not found:
        print(f"no cluster has cost anything in the last {format_count(days, 'day')}")
        return
    rows = [("day", "cluster", "where", "up", "used", "cost")]
    in_all = ledger.Total()
    for (day, name, place), total in found.items():
        in_all = in_all.plus(total)
        rows.append((f"{day}", name, place, format_duration(3600 * total.hours), *_spent(total)))
    rows.append(("in all", "", "", "", *_spent(in_all)))
    print("\n".join(aligned(rows)))
    print("used: hours of GPUs, or of nodes without; not those in a queue")
    if in_all.dollars:
        print(
            "cost: instances with their disks and public addresses, from when they ran, at the "
            "price that was shown then, and disks while these were stopped; spot may have cost "
            "less, and traffic comes on top: AWS's own bill has them"
        )
    if any(place.endswith(ledger.AT_MOST) for _, _, place in found):
        print("at most: it ended while no notebook was there, and when that was is no longer known")


def panel(context: CommandContext, options: Namespace) -> None:
    """Show the panel of a cluster in this cell."""
    cluster = context.session.find(options.name)
    if cluster is None:
        raise UsageError(no_cluster(options.name, "show"))
    if not context.session.panels.show(cluster):
        raise UsageError(
            "a panel needs a notebook with ipywidgets and anywidget: `%sky status` shows the same "
            "as text."
        )


def _entries(clusters: Iterable[Cluster], name: str | None) -> list[StatusEntry]:
    """Return clusters of the registry; parameters as for `_table`."""
    known = {cluster.id: cluster for cluster in clusters}
    rows = [row for row in registry.rows() if name in (None, row.name)]
    return [
        {
            "id": row.id,
            "name": row.name,
            "provider": row.provider,
            "nodes": row.spec["nodes"],
            "ranks": sum(len(node.get("ranks", ())) for node in row.nodes),
            "created": row.created,
            "state": each.phase,
            "busy": list(each.busy),
            "run": each.title,
            "waiting": owed_runs.count_waiting(row.id),
        }
        for row, each in zip(rows, _statuses(rows, known), strict=True)
    ]


def _table(clusters: Iterable[Cluster], current: str, name: str | None) -> str:
    """Return a table of clusters of the registry, and the ranks of the current or named one.

    Parameters
    ----------
    clusters
        The clusters that this notebook is connected to; agents of other clusters are asked.
    current
        The name of the cluster that cells use.
    name
        The name of the only one to show.
    """
    now = time.time()
    every = [row for row in registry.read() if name in (None, row.name)]
    rows = [row for row in every if isinstance(row, RegistryRow)]
    if not every:
        return f"N{NONE_RUNNING[1:]}"
    known = {cluster.id: cluster for cluster in clusters}
    statuses = {row.id: each for row, each in zip(rows, _statuses(rows, known), strict=True)}
    # Some have ended meanwhile, or what they cost has; one that has begun is in the next table.
    rows = [row for row in registry.rows() if row.id in statuses]
    lines = [
        (
            "*" if row.name == current else "",
            row.name,
            row.provider,
            _size(row),
            statuses[row.id].phase,
            format_duration(now - row.created)
            if statuses[row.id].phase not in (ProbePhase.GONE, ProbePhase.STOPPED)
            else "",
            _cost(row, now),
            _running(row, statuses[row.id]),
        )
        for row in rows
    ]
    lines += [
        ("", row.name, "", "", ProbePhase.UNKNOWN, "", "", _of_another_version(row.name))
        for row in every
        if isinstance(row, Broken)
    ]
    text = "\n".join(aligned([_HEAD, *lines]))
    here = next((each for each in known.values() if each.name == (name or current)), None)
    if here is None:
        return text
    note = here.snapshot()["cluster"]["note"]
    return "\n".join([text, *_ranks(here.state), *([f"   {note}"] if note else [])])


def _statuses(rows: Sequence[RegistryRow], known: Mapping[str, Cluster]) -> list[ProbeResult]:
    """Return the status of each cluster, as known here or as reported by its agents."""
    # For a lost cluster, find out when its machines ended, and so stopped costing money.
    here = {identity: _status_here(each) for identity, each in known.items()}
    asked = [row for row in rows if not here.get(row.id) or not known[row.id].alive]
    found = {row.id: each for row, each in zip(asked, probe(asked, providers()), strict=True)}
    return [here.get(row.id) or found[row.id] for row in rows]


def _status_here(cluster: Cluster) -> ProbeResult | None:
    """Return the status of a cluster of this process; ``None`` where its nodes know more."""
    status, run = ProbeResult.of_state(cluster.state), cluster.snapshot()["run"]
    if not status.busy:
        return status
    if run is None or run["state"] is not RunState.RUNNING:  # it is of another notebook
        return None
    return replace(status, title=run["title"] or "a cell", seconds=run["seconds"])


def _size(row: RegistryRow) -> str:
    ranks = [len(node.get("ranks", ())) for node in row.nodes]
    ranks = ranks or [row.spec.get("procs_per_node") or 1]
    each = f"{min(ranks)}-{max(ranks)}" if min(ranks) < max(ranks) else f"{ranks[0]}"
    return f"{row.spec['nodes']} × {each}"


def _cost_entry(day: date, name: str, place: str, total: ledger.Total) -> CostEntry:
    return {
        "day": f"{day}",
        "cluster": name,
        "where": place.removesuffix(ledger.AT_MOST),
        "hours": total.hours,
        "gpu_hours": total.gpu_hours,
        "node_hours": total.node_hours,
        "dollars": total.dollars,
        "at_most": place.endswith(ledger.AT_MOST),
    }


def _spent(total: ledger.Total) -> tuple[str, str]:
    """Format used hours and dollars; empty if there are none."""
    used = ((total.gpu_hours, Unit.GPU_HOURS), (total.node_hours, Unit.NODE_HOURS))
    hours = ", ".join(format_cost(amount, unit) for amount, unit in used if amount)
    return hours, format_dollars(total.dollars) if total.dollars else ""


def _cost(row: RegistryRow, now: float) -> str:
    cost = row.cost(now)
    if cost is None:
        return ""
    if row.price is None:
        return format_cost(cost, row.rate.unit)
    if row.spec.get("stopped"):
        return f"{format_dollars(cost)}; {disks_cost(stops.disk_cost(row, now))}"
    if row.ended:
        return format_dollars(cost)
    return f"{format_dollars(cost)}, {format_dollars(row.price or 0.0)} an hour"


def _of_another_version(name: str) -> str:
    return f"another version of jupyter_sky may have started it, where `%sky down {name}` ends it"


def _running(row: RegistryRow, now: ProbeResult) -> str:
    if now.phase is ProbePhase.STOPPED:
        return f"`%sky start {row.name}` starts it again"
    if row.is_stopped and now.phase is ProbePhase.UNREACHABLE:
        return (
            f"its start was cut off: machines that run stop within 15 minutes, or "
            f"`%sky start {row.name}` takes them up"
        )
    if now.phase is ProbePhase.STARTING:
        return row.progress
    if now.phase is ProbePhase.UNKNOWN:
        return _of_another_version(row.name)
    if now.phase is ProbePhase.GONE and row.progress and not row.machines:
        return f"{row.progress}; its cell goes on with it, `%sky gc` removes it"
    if now.phase is ProbePhase.GONE:
        if any(not each.read_only for each in attached_volumes(row)):
            return (
                f"`%sky down {row.name}` writes back what nodes that are left have in volumes, and "
                "removes them"
            )
        return "`%sky gc` removes what is left"
    if not now.busy:
        return ""
    what = format_ranks(now.busy)
    if now.title:
        what = f"{now.title}, {what}, for {format_duration(now.seconds)}"
    waiting = owed_runs.count_waiting(row.id)
    return f"{what}; {format_count(waiting, 'run')} waiting" if waiting else what


def _ranks(state: ClusterState) -> Iterator[str]:
    """Yield a line for each group of equal ranks of a node."""
    nodes = {node.node: node for node in state.nodes}
    alike = itertools.groupby(state.ranks, key=lambda rank: (rank.node, rank.phase, rank.trouble))
    for (number, phase, trouble), group in alike:
        node = nodes[number]
        where = f"node {number}"
        if node.name or not node.addr.startswith("127."):
            where += f" ({node.host})"
        what = [format_ranks([rank.rank for rank in group]), where, node.gpu or "CPU", phase]
        yield "   " + "  ".join([*what, *([f"({trouble})"] if trouble else [])])
