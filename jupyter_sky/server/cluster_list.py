"""All clusters as the sidebar shows them: from the registry, and from what kernels tell.

Nothing in a row or a file is taken for granted. What cannot be made out is shown as such, and never
keeps the rest from being shown.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.kernel_files import KernelFile
from jupyter_sky.cluster.inventory.registry import Broken, Row
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_duration
from jupyter_sky.server.kernel_reports import Account, KernelReports

Entry = dict[str, Any]
"""As the schema says."""


@dataclass(frozen=True)
class Served:
    """A kernel of this server: the path of its notebook, and whether it is busy."""

    path: str | None
    busy: bool


@dataclass(frozen=True)
class Found:
    """What there is, before anybody has looked at the nodes.

    Attributes
    ----------
    rows
        The registry's.
    accounts
        What kernels tell, by the ids of clusters.
    troubles
        What kept us from seeing more, a sentence each.
    home
        Where the registry is; ``None`` if it cannot be read.
    """

    rows: Sequence[Row | Broken]
    accounts: Mapping[str, Sequence[Account]]
    troubles: Sequence[str]
    home: str | None

    @property
    def unattended(self) -> list[Row]:
        """The clusters whose state nobody tells, though they have machines."""
        return [
            row
            for row in self.rows
            if isinstance(row, Row)
            and row.machines
            and not row.is_elsewhere
            and not any(each.is_live for each in self.accounts.get(row.id, ()))
        ]

    def row(self, identity: str) -> Row | Broken | None:
        """Return the registry's row of a cluster."""
        return next((row for row in self.rows if row.id == identity), None)

    def is_elsewhere(self, identity: str) -> bool:
        """Return whether a live cluster would be in a registry that is not to be seen here."""
        return any(self.home != each.kernel.home for each in self.live(identity))

    def live(self, identity: str) -> list[Account]:
        """Return what live kernels tell of a cluster: first the one that runs something on it."""
        told = [each for each in self.accounts.get(identity, ()) if each.is_live]
        return sorted(told, key=lambda each: (each.is_running, each.kernel.seen), reverse=True)


def find(hearing: KernelReports) -> Found:
    """Read the registry and what kernels tell; takes its time with files."""
    accounts, troubles = hearing.accounts()
    rows: Sequence[Row | Broken] = ()
    here = None
    try:
        rows = registry.read()
        here = str(registry.home())
        hearing.forget({row.id for row in rows})
    except (sqlite3.Error, SkyError) as error:
        troubles.append(f"The registry of clusters cannot be read: {str(error).rstrip('.')}.")
    by_id: dict[str, list[Account]] = {}
    for account in accounts:
        by_id.setdefault(account.told.id, []).append(account)
    return Found(rows, by_id, troubles, here)


def answer(
    found: Found,
    states: Mapping[str, str],
    failures: Mapping[str, str],
    served: Mapping[str, Served],
    root: Path,
) -> dict[str, Any]:
    """Return all clusters as the schema says.

    Parameters
    ----------
    found
        What there is.
    states
        Of clusters that no kernel tells of, by their ids, as far as somebody has looked.
    failures
        Why the last action on a cluster did not work, by its id.
    served
        The kernels of this server, by their ids.
    root
        Where this server has its notebooks.
    """
    identities = dict.fromkeys(row.id for row in found.rows)
    identities.update(dict.fromkeys(each for each in found.accounts if found.is_elsewhere(each)))
    entries = [_entry(found, each, states, failures, served, root) for each in identities]
    return {
        "version": 1,
        "jupyter_sky": __version__,
        "trouble": " ".join(found.troubles),
        "clusters": [each for each in entries if each["state"] != "down"],
    }


def _entry(
    found: Found,
    identity: str,
    states: Mapping[str, str],
    failures: Mapping[str, str],
    served: Mapping[str, Served],
    root: Path,
) -> Entry:
    row, live = found.row(identity), found.live(identity)
    told = live or sorted(found.accounts.get(identity, ()), key=lambda each: each.kernel.seen)[-1:]
    account = next((each for each in told if not each.flaw), None)
    snapshot = account.told.snapshot if account else None
    shown = snapshot["cluster"] if snapshot else {}
    entry = _of_row(row)
    if shown:
        entry["nodes"] = shown["nodes"]
        entry["name"] = entry["name"] or shown["name"]
        entry["provider"] = entry["provider"] or shown["provider"]
    entry["gpu"] = shown.get("gpu") or entry["gpu"]
    entry["price"] = shown.get("price") if shown.get("price") is not None else entry["price"]
    state = _state(row, live, snapshot, states)
    failure = failures.get(identity, "")
    return {
        "id": identity,
        **entry,
        "state": state,
        "note": " ".join(_notes(row, live, told, state, failure, served, root)),
        "kernels": [_kernel(each.kernel, served, root) for each in live],
        "cost": row.cost(time.time()) if isinstance(row, Row) and row.price else shown.get("cost"),
        "idle": _idle(row, live, state),
        "snapshot": snapshot,
        "seen": account.kernel.seen if account else None,
    }


def _of_row(row: Row | Broken | None) -> Entry:
    """Return what the registry says of a cluster."""
    if not isinstance(row, Row):
        name = row.name if row else ""
        facts = ("nodes", "gpu", "created", "price", "line")
        return {"name": name, "provider": "", **dict.fromkeys(facts)}
    nodes = [
        node for machine in row.machines for node in machine["nodes"] if isinstance(node, dict)
    ]
    gpus = [node["gpu"] for node in nodes if isinstance(node.get("gpu"), str)]
    wanted, line = row.spec.get("accelerator"), row.spec.get("line")
    prices = [node["price"] for node in nodes if _is_number(node.get("price"))]
    return {
        "name": row.name,
        "provider": row.provider,
        "nodes": len(nodes) or row.spec["nodes"],
        "gpu": gpus[0] if gpus else wanted if isinstance(wanted, str) else None,
        "created": row.created,
        "price": sum(prices) if prices else None,
        "line": f"%%sky {line}".rstrip() if isinstance(line, str) else None,
    }


def _state(
    row: Row | Broken | None,
    live: Sequence[Account],
    snapshot: dict[str, Any] | None,
    states: Mapping[str, str],
) -> str:
    if live and snapshot:
        return "running" if live[0].is_running else str(snapshot["cluster"]["phase"])
    if live or not isinstance(row, Row) or row.is_elsewhere:
        return "unknown"
    if not row.machines:
        return "starting" if row.is_starting else "lost"
    return states.get(row.id, "unknown")


def _notes(
    row: Row | Broken | None,
    live: Sequence[Account],
    told: Sequence[Account],
    state: str,
    failure: str,
    served: Mapping[str, Served],
    root: Path,
) -> Iterable[str]:
    if isinstance(row, Broken):
        row = None
        yield "Its entry in the registry cannot be made out: it may be of another version."
    elif row and row.is_elsewhere:
        yield f"It runs on {row.machines[0].get('computer')}, which shares its registry with this."
    elif row and not live and state == "lost":
        yield (
            "It is gone: shutting it down removes what is left of it."
            if row.machines
            else "It never came up: shutting it down removes what is left of it."
        )
    for account in told:
        kernel = account.kernel
        name = _kernel(kernel, served, root)["notebook"]
        if kernel.is_elsewhere:
            yield f"{name} is on {kernel.computer}; what is shown is {_age(kernel)} old."
        elif not account.is_live:
            yield f"The kernel of {name} has ended; what is shown is {_age(kernel)} old."
        if kernel.jupyter_sky != __version__:
            yield (
                f"{name} has jupyter_sky {kernel.jupyter_sky}, and this server {__version__}: "
                "install the same in both."
            )
        if account.flaw:
            yield f"What {name} tells of it cannot be shown ({account.flaw})."
        if account.told.trouble:
            yield account.told.trouble
    if failure and failure not in [each.told.trouble for each in told]:
        yield f"{failure.rstrip('.')}."
    if not told and state in ("ready", "running") and not (row and row.has_starter):
        yield "No notebook is connected to it."


def _kernel(kernel: KernelFile, served: Mapping[str, Served], root: Path) -> Entry:
    here = served.get(kernel.kernel)
    path = here.path if here else _below(root, kernel.notebook)
    return {
        "id": kernel.kernel,
        "notebook": path or kernel.notebook or "a notebook",
        "path": path,
        "busy": here.busy if here else False,
        "jupyter_sky": kernel.jupyter_sky,
    }


def _below(root: Path, notebook: str) -> str | None:
    """Return the path by which the server serves a file, if it does."""
    path = os.path.normpath(notebook)
    if not path.endswith(".ipynb") or not path.startswith(f"{root}{os.sep}"):
        return None
    return Path(path).relative_to(root).as_posix()


def _idle(row: Row | Broken | None, live: Sequence[Account], state: str) -> Entry | None:
    timeout: Any = row.spec.get("idle_timeout") if isinstance(row, Row) else None
    if not _is_number(timeout):
        return None
    left: float | None = None
    if state == "running":
        left = timeout
    elif live and live[0].told.idle_since is not None:
        left = max(0.0, timeout - (time.time() - live[0].told.idle_since))
    return {"timeout": timeout, "left": left}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _age(kernel: KernelFile) -> str:
    return format_duration(max(0.0, time.time() - kernel.seen))
