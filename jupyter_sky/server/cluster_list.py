"""The list of clusters for the sidebar: those of the registry, and those that kernels report.

Neither rows of the registry nor files of kernels are trusted to be well-formed. Unreadable ones are
shown as such, and never hide the rest.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from jupyter_sky import __version__
from jupyter_sky.cluster.cost_meter import Unit
from jupyter_sky.cluster.inventory import registry, stops
from jupyter_sky.cluster.inventory.kernel_files import KernelFile
from jupyter_sky.cluster.inventory.storage.row import Broken, RegistryRow
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import as_sentence, format_duration
from jupyter_sky.paths import home
from jupyter_sky.server import schema
from jupyter_sky.server.kernel_reports import CheckedReport, KernelReports
from jupyter_sky.server.schema import ClusterStatus

NO_CLUSTER = "that cluster no longer exists."


@dataclass(frozen=True)
class ServerKernel:
    """A kernel of this server: the path of its notebook, and whether it is busy."""

    path: str | None
    busy: bool


@dataclass(frozen=True)
class ServerKernels:
    """The kernels of this server by id, and the folder of its notebooks."""

    root: Path
    by_id: Mapping[str, ServerKernel]

    def describe(self, file: KernelFile) -> schema.Kernel:
        """Return what pages are told of a kernel that has written a file, of any server."""
        here = self.by_id.get(file.kernel)
        path = here.path if here else self._path_below_root(file.notebook)
        return {
            "id": file.kernel,
            "notebook": path or file.notebook or "a notebook",
            "path": path,
            "busy": here.busy if here else False,
            "jupyter_sky": file.jupyter_sky,
        }

    def _path_below_root(self, notebook: str) -> str | None:
        """Return the path at which the server serves a notebook's file, if it does."""
        path = os.path.normpath(notebook)
        if not path.endswith(".ipynb") or not path.startswith(f"{self.root}{os.sep}"):
            return None
        return Path(path).relative_to(self.root).as_posix()


@dataclass(frozen=True)
class ClusterInventory:
    """The clusters according to registry and kernels, without asking any node.

    Attributes
    ----------
    rows
        The rows of the registry.
    reports
        The kernels' reports, by the ids of clusters.
    problems
        Sentences about why some clusters may be missing.
    home
        The folder of the registry; ``None`` if it cannot be read.
    """

    rows: Sequence[RegistryRow | Broken]
    reports: Mapping[str, Sequence[CheckedReport]]
    problems: Sequence[str]
    home: str | None

    @property
    def unattended(self) -> list[RegistryRow]:
        """The clusters with machines that no live kernel reports on."""
        return [
            row
            for row in self.rows
            if isinstance(row, RegistryRow)
            and row.machines
            and not row.is_elsewhere
            and not self.live_reports(row.id)
        ]

    def row(self, identity: str) -> RegistryRow | Broken | None:
        """Return the registry's row of a cluster."""
        return next((row for row in self.rows if row.id == identity), None)

    def is_of_another_registry(self, identity: str) -> bool:
        """Return whether a live kernel with another registry reports a cluster."""
        return any(self.home != each.kernel.home for each in self.live_reports(identity))

    def live_reports(self, identity: str) -> list[CheckedReport]:
        """Return the reports of live kernels on a cluster, that of its last run first."""
        live = [each for each in self.reports.get(identity, ()) if each.is_live]
        # A kernel also writes its file anew because of what other kernels run.
        return sorted(live, key=lambda each: (each.is_running, *each.order), reverse=True)

    def last_report(self, identity: str) -> list[CheckedReport]:
        """Return the report of the last run on a cluster, or the newest, if there is one."""
        return sorted(self.reports.get(identity, ()), key=lambda each: each.order)[-1:]


def read_inventory(kernel_reports: KernelReports) -> ClusterInventory:
    """Read the registry and the kernels' files; this blocks."""
    reports, problems = kernel_reports.all()
    rows: Sequence[RegistryRow | Broken] = ()
    registry_home = None
    try:
        rows = registry.read()
        registry_home = str(home())
        kernel_reports.remove_stale({row.id for row in rows})
    except SkyError as error:
        problems.append(as_sentence(f"The registry of clusters cannot be read: {error}"))
    by_id: dict[str, list[CheckedReport]] = {}
    for report in reports:
        by_id.setdefault(report.cluster.id, []).append(report)
    return ClusterInventory(rows, by_id, problems, registry_home)


def answer(
    inventory: ClusterInventory,
    states: Mapping[str, ClusterStatus],
    failures: Mapping[str, str],
    kernels: ServerKernels,
) -> schema.Clusters:
    """Return the answer of ``GET clusters``.

    Parameters
    ----------
    inventory
        The clusters according to registry and kernels.
    states
        The states of unattended clusters, by id, as far as their agents have answered.
    failures
        Why the last action on a cluster failed that was no longer waited for, by cluster id.
    kernels
        The kernels of this server.
    """
    identities = dict.fromkeys(row.id for row in inventory.rows)
    identities.update(
        dict.fromkeys(each for each in inventory.reports if inventory.is_of_another_registry(each))
    )
    entries = [_entry(inventory, each, states, failures, kernels) for each in identities]
    return {
        "version": 1,
        "jupyter_sky": __version__,
        "trouble": " ".join(inventory.problems),
        "clusters": [each for each in entries if each["state"] != "down"],
    }


def _entry(
    inventory: ClusterInventory,
    identity: str,
    states: Mapping[str, ClusterStatus],
    failures: Mapping[str, str],
    kernels: ServerKernels,
) -> schema.Entry:
    found, live = inventory.row(identity), inventory.live_reports(identity)
    row = found if isinstance(found, RegistryRow) else None
    reports = live or inventory.last_report(identity)
    if row and row.spec.get("stopped"):
        live = reports = []  # of what it was
    usable = next((each for each in reports if not each.flaw), None)
    snapshot = usable.cluster.snapshot if usable else None
    shown = snapshot["cluster"] if snapshot else {}
    facts = _registry_facts(row) if row else _RegistryFacts(found.name if found else "")
    state = _state(row, live, snapshot, states)
    failure = failures.get(identity, "")
    notes = [
        _state_note(found, state, bool(live)) if found else "",
        *(note for each in reports for note in _report_notes(each, kernels)),
        as_sentence(failure) if failure else "",
        "" if reports else _unwatched_note(row, state),
    ]
    return {
        "id": identity,
        "name": facts.name or shown.get("name", ""),
        "provider": facts.provider or shown.get("provider", ""),
        "nodes": shown["nodes"] if shown else facts.nodes,
        "gpu": shown.get("gpu") or facts.gpu,
        "created": facts.created,
        "state": state,
        "note": " ".join(filter(None, notes)),
        "kernels": [kernels.describe(each.kernel) for each in live],
        "price": shown.get("price") if shown.get("price") is not None else facts.price,
        "cost": shown.get("cost") if facts.cost is None else facts.cost,
        "unit": shown.get("unit", facts.unit) if facts.cost is None else facts.unit,
        "stoppable": row is not None and row.spec.get("stoppable") is True,
        "running_price": row.running_price if row else None,
        "idle": _idle(row, live, state) if row else None,
        "line": facts.line,
        "snapshot": snapshot,
        "snapshot_kernel": usable.kernel.kernel if usable else None,
        "seen": usable.kernel.seen if usable else None,
    }


@dataclass(frozen=True)
class _RegistryFacts:
    """The registry's facts about a cluster, each field checked; units as in the schema."""

    name: str = ""
    provider: str = ""
    nodes: int | None = None
    gpu: str | None = None
    created: float | None = None
    price: float | None = None
    cost: float | None = None
    unit: Unit = Unit.DOLLARS
    line: str | None = None


def _registry_facts(row: RegistryRow) -> _RegistryFacts:
    nodes = [
        node for machine in row.machines for node in machine["nodes"] if isinstance(node, dict)
    ]
    gpus = [node["gpu"] for node in nodes if isinstance(node.get("gpu"), str)]
    wanted, line = row.spec.get("accelerator"), row.spec.get("line")
    return _RegistryFacts(
        name=row.name,
        provider=row.provider,
        nodes=len(nodes) or row.spec["nodes"],
        gpu=gpus[0] if gpus else wanted if isinstance(wanted, str) else None,
        created=row.created,
        price=row.price if _is_number(row.price) else None,
        cost=row.cost(time.time()),
        unit=row.rate.unit,
        line=f"%%sky {line}".rstrip() if isinstance(line, str) else None,
    )


def _state(
    row: RegistryRow | None,
    live: Sequence[CheckedReport],
    snapshot: Mapping[str, Any] | None,
    states: Mapping[str, ClusterStatus],
) -> ClusterStatus:
    if row and row.spec.get("stopped"):
        return "stopped"
    if row and row.machines and row.is_starting:
        return "starting"
    if live and snapshot:
        phase: ClusterStatus = snapshot["cluster"]["phase"]
        # Also a run that this kernel did not begin, as that of a terminal.
        is_busy = phase == "ready" and any(rank["phase"] == "running" for rank in snapshot["ranks"])
        return "running" if live[0].is_running or is_busy else phase
    if live or not row or row.is_elsewhere:
        return "unknown"
    if not row.machines:
        return "starting" if row.is_starting else "lost"
    # Once nodes were asked, the registry knows which clusters are stopped.
    told = states.get(row.id, "unknown")
    return "unknown" if told == "stopped" else told


def _state_note(row: RegistryRow | Broken, state: ClusterStatus, is_live: bool) -> str:
    """Return why a cluster is in its state, and what to do; empty if there is nothing to say."""
    if isinstance(row, Broken):
        return "Its entry in the registry cannot be read: another version may have written it."
    if row.is_elsewhere:
        return (
            f"It runs on {row.elsewhere}, which shares its registry with this computer; if "
            f"{row.elsewhere} is gone, `%sky down --discard {row.name}` forgets it."
        )
    if state == "lost" and not is_live:
        if row.machines:
            unused = _unused_end(row)
            why = f" ({unused} without a notebook)" if unused else ""
            return f"Its nodes are gone{why}: end it to remove what is left of it."
        if row.progress:
            return (
                f"Its notebook has ended while it waited ({row.progress}): run its cell again to "
                "go on, or end it."
            )
        return "It did not start: end it to remove what is left of it."
    if state == "starting" and row.progress:
        return as_sentence(row.progress[:1].upper() + row.progress[1:])
    if state == "stopped":
        left = stops.money_left(row, time.time())
        if left is None or left > 0:
            return f"Its disks are kept: Start or `%sky start {row.name}` starts it again."
        return (
            f"Its --max-cost is spent, and its disks go on costing: end it, or give it more "
            f"with `%sky start {row.name} --max-cost`."
        )
    return ""


def _unwatched_note(row: RegistryRow | None, state: ClusterStatus) -> str:
    """Return that no notebook is connected to a cluster which is up, and when that ends it."""
    if state not in ("ready", "running") or (row and row.has_starter):
        return ""
    unused = _unused_end(row) if row and state == "ready" else ""
    return f"No notebook is connected to it{f': {unused} without one' if unused else ''}."


def _unused_end(row: RegistryRow) -> str:
    """Return when a cluster ends itself that nobody uses; empty if that is not known."""
    if not row.grace or row.spec.get("autostop") is True:
        return ""
    idle = row.spec.get("idle_timeout")
    return f"it ends itself after {format_duration(min(row.grace, idle or row.grace))}"


def _report_notes(report: CheckedReport, kernels: ServerKernels) -> Iterator[str]:
    kernel = report.kernel
    name = kernels.describe(kernel)["notebook"]
    if kernel.is_elsewhere:
        yield f"{name} is on {kernel.computer}; what is shown is {_age(kernel)} old."
    elif not report.is_live:
        yield f"The kernel of {name} has ended; what is shown is {_age(kernel)} old."
    if kernel.jupyter_sky != __version__:
        yield (
            f"{name} has jupyter_sky {kernel.jupyter_sky}, and this server {__version__}: "
            "install the same in both."
        )
    if report.flaw:
        yield f"The report of {name} cannot be shown ({report.flaw})."


def _idle(
    row: RegistryRow, live: Sequence[CheckedReport], state: ClusterStatus
) -> schema.IdleTimeout | None:
    timeout = row.spec.get("idle_timeout")
    if not _is_number(timeout):
        return None
    left: float | None = None
    if state == "running":
        left = timeout
    elif live and live[0].cluster.idle_since is not None:
        # A clock that was set back gives nobody more time.
        idle = max(0.0, time.time() - live[0].cluster.idle_since)
        left = max(0.0, timeout - idle)
    return {"timeout": timeout, "left": left, "keeps_disks": row.spec.get("autostop") is True}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _age(kernel: KernelFile) -> str:
    return format_duration(max(0.0, time.time() - kernel.seen))
