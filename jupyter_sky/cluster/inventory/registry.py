"""The registry: every cluster of this user, in SQLite, whichever kernel started it.

A row is written before a resource is requested, so that nothing can be launched and forgotten.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.inventory.seals import seal
from jupyter_sky.cluster.inventory.storage import ledger, processes, tables
from jupyter_sky.cluster.inventory.storage.ledger import Spent
from jupyter_sky.cluster.inventory.storage.row import Broken, RegistryRow, parse
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import without_secrets
from jupyter_sky.paths import home
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop

WAIT = 5.0
"""Seconds for another process to let go of the registry."""


ONLY = "--only"
"""With this and an id at its beginning, the names in a command line mean no other cluster."""

_KEPT = (
    *("nodes", "procs_per_node", "cpus", "memory", "idle_timeout", "replace", "patience"),
    *("unattended", "autostop"),
)
"""What a row keeps of a spec as it is."""


_only: str | None = None


class RegistryError(SkyError):
    """The registry cannot be read or written."""


def describe(spec: ClusterSpec, plugins: Sequence[str]) -> dict[str, Any]:
    """Return a spec as a row keeps it: of its image, whose variables can be secrets, the base."""
    row = {name: getattr(spec, name) for name in _KEPT}
    accelerator = spec.accelerator
    row["accelerator"] = str(accelerator) if accelerator is not None else None
    row["plugins"] = list(plugins)
    row["base"] = {
        "like": spec.image.like,
        "pins": [without_secrets(each) for each in spec.image.pins],
        "wheels": list(spec.image.wheels),
        "constraints": [without_secrets(each) for each in spec.image.constraints],
        "variables": list(spec.image.env),
    }
    row["seals"] = {name: seal(value) for name, value in spec.image.env.items()}
    row["starter"] = processes.describe()
    return row


def recorded_spec(row: RegistryRow) -> ClusterSpec:
    """Return the spec that a row keeps."""
    known = {field.name for field in fields(ClusterSpec)} & row.spec.keys()
    return ClusterSpec(name=row.name, **{name: row.spec[name] for name in known})


def record(identity: str, name: str, provider: str, spec: dict[str, Any]) -> None:
    """Add the row of a cluster that is about to start.

    Raises
    ------
    KeyError
        When a cluster of this name is there already.
    """
    with opened() as database:
        try:
            database.execute(
                "INSERT INTO clusters (id, name, provider, spec, created) VALUES (?, ?, ?, ?, ?)",
                (identity, name, provider, json.dumps(spec), time.time()),
            )
        except sqlite3.IntegrityError:
            raise KeyError(name) from None


def change(
    identity: str,
    changes: Mapping[str, object],
    machines: Sequence[dict[str, Any]] | None = None,
    spent: Spent | None = None,
) -> None:
    """Change the row of a cluster.

    Parameters
    ----------
    identity
        The cluster's id.
    changes
        What changes in its spec, by name, as JSON has it.
    machines
        Its machines, if these change.
    spent
        The time that is over because it costs something else from now on.
    """
    update(identity, lambda row: RowChange(changes, machines, spent))


@dataclass(frozen=True)
class RowChange:
    """A change of a row; attributes as the parameters of `change`."""

    changes: Mapping[str, object]
    machines: Sequence[dict[str, Any]] | None = None
    spent: Spent | None = None


def update(identity: str, decide: Callable[[RegistryRow | None], RowChange | None]) -> None:
    """Change the row of a cluster by what is in it, which no other process changes meanwhile.

    Parameters
    ----------
    decide
        Is given the row, or ``None`` if that is gone or cannot be read; it must not block. It
        returns the change, or ``None`` for none; what it raises changes nothing.
    """
    with _alone() as database:
        if change := decide(_row(database, identity)):
            _write(database, identity, change)


def _write(database: sqlite3.Connection, identity: str, change: RowChange) -> None:
    changes, machines = change.changes, change.machines
    places = ", ".join(f"'$.{name}', json(?)" for name in changes)
    values = [*changes.values()] if machines is None else [*changes.values(), machines]
    also = "" if machines is None else ", machines = ?"
    if change.spent:
        ledger.write(database, change.spent)
    database.execute(
        f"UPDATE clusters SET spec = json_set(spec, {places}){also} WHERE id = ?",
        (*map(json.dumps, values), identity),
    )


def record_machines(
    identity: str, machines: Sequence[dict[str, Any]], since: float | None = None
) -> None:
    """Record the machines of a cluster, that count from then on, or since its row was made."""
    meter = None if since is None else [0.0, since]
    change(identity, {"meter": meter, "leaving": [], "scaler": None}, machines)


def record_size(
    identity: str,
    nodes: int,
    machines: Sequence[dict[str, Any]],
    leaving: Sequence[dict[str, Any]] = (),
) -> bool:
    """Record the size of a cluster; return whether machines were recorded as leaving before.

    Parameters
    ----------
    identity
        The cluster's id.
    nodes
        How many nodes it has.
    machines
        Its machines.
    leaving
        Machines that do not belong to it yet, or no longer, and that may be there.
    """
    scaler, were_leaving = processes.describe(), False

    def decide(row: RegistryRow | None) -> RowChange:
        nonlocal were_leaving
        now, were_leaving = time.time(), bool(row and row.leaving)
        # From now on its rate is another.
        meter = None if row is None or row.rate.amount is None else [row.cost(now), now]
        by = {**scaler, "since": now} if leaving else None
        changes = {"nodes": nodes, "leaving": leaving, "meter": meter, "scaler": by}
        return RowChange(changes, machines, row.spent(now) if row else None)

    update(identity, decide)
    return were_leaving


def clear_starter(identity: str) -> None:
    """Clear the starter of a cluster; resources of it may still exist."""
    change(identity, {"starter": {"computer": socket.gethostname(), "pid": 0}})


def remove(identity: str) -> None:
    """Remove the row of a cluster of which nothing is left; what it has cost is kept."""
    with _alone() as database:
        # Of two that end it at once, only the first counts what it has cost.
        if row := _row(database, identity):
            ledger.write(database, row.spent(time.time()))
        database.execute("DELETE FROM clusters WHERE id = ?", (identity,))
    owed_runs.forget(identity)


def with_id(identity: str) -> RegistryRow | None:
    """Return the cluster with that id."""
    return next((row for row in rows() if row.id == identity), None)


def use_only(identity: str) -> None:
    """Let this process use no cluster but one, whichever has its name by now."""
    global _only
    _only = identity


def find(name: str) -> RegistryRow | None:
    """Return the cluster of that name; raises as `named`."""
    row = named(name)
    return row if isinstance(row, RegistryRow) else None


def named(name: str) -> RegistryRow | Broken | None:
    """Return the row of that name, also one that cannot be read.

    Raises
    ------
    SkyError
        If it is not of the only cluster that this process may use.
    """
    row = next((row for row in read() if row.name == name), None)
    if row and _only not in (None, row.id):
        raise SkyError(f"that cluster no longer exists, and {name} is another: nothing was done.")
    return row


def rows() -> list[RegistryRow]:
    """Return all clusters, oldest first."""
    return [row for row in read() if isinstance(row, RegistryRow)]


def all_spent() -> list[Spent]:
    """Return what clusters have cost that are gone, and those that are up, up to now."""
    with opened() as database:
        gone = ledger.read(database)
    here = (row.spent(time.time()) for row in rows())
    return [*gone, *(each for each in here if each.is_something)]


def read() -> list[RegistryRow | Broken]:
    """Return all rows, oldest first, also those that cannot be read."""
    with opened() as database:
        found = database.execute(f"{_SELECT} ORDER BY created").fetchall()
    return [parse(*each) for each in found]


_SELECT = "SELECT id, name, provider, spec, machines, created FROM clusters"


def _row(database: sqlite3.Connection, identity: str) -> RegistryRow | None:
    found = database.execute(f"{_SELECT} WHERE id = ?", (identity,)).fetchone()
    row = parse(*found) if found else None
    return row if isinstance(row, RegistryRow) else None


@contextlib.contextmanager
def _alone() -> Iterator[sqlite3.Connection]:
    """Give the database as `opened` does; no other process writes between what is done in it."""
    with opened() as database:
        database.execute("BEGIN IMMEDIATE")
        yield database


def file() -> Path:
    """Return the file of the registry, which may not be there yet."""
    return home() / "registry.sqlite"


@contextlib.contextmanager
def opened() -> Iterator[sqlite3.Connection]:
    """Give the database; what is done in it is written together, or not at all.

    It blocks while another process writes, or holds it for longer.
    """
    if event_loop.is_here():
        raise RuntimeError("the registry may block: use it in a thread, with `tasks.blocking`")
    path = file()
    try:
        with contextlib.suppress(OSError):  # the database says what is wrong
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(path, timeout=WAIT)
        try:
            with database:
                for table in tables.ALL:
                    database.execute(table)
                yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise RegistryError(f"{path} cannot be used ({error}): {tables.advice(error)}.") from None
