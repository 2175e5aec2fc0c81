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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from jupyter_sky.cluster.cost_meter import CostMeter, CostRate, gpus_of, rate_of, total_price
from jupyter_sky.cluster.inventory import ledger, owed_runs, processes, tables
from jupyter_sky.cluster.inventory.ledger import EndsBy, Rent, Spent
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import without_secrets
from jupyter_sky.paths import home
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop

START_WITHIN = 600.0
"""Seconds after which a cluster without machines is taken for one that never came up."""
RENT_WITHIN = 3 * 3600.0
"""The same for machines that are rented from another computer: they boot, and install much."""

WAIT = 5.0
"""Seconds for another process to let go of the registry."""


class RegistryError(SkyError):
    """The registry cannot be read or written."""


@dataclass(frozen=True)
class RegistryRow:
    """A cluster in the registry; ``spec`` and ``machines`` are plain data."""

    id: str
    name: str
    provider: str
    spec: dict[str, Any]
    machines: list[dict[str, Any]]
    created: float

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Its nodes, as far as they can be made out."""
        return [node for each in self.machines for node in each["nodes"] if isinstance(node, dict)]

    @property
    def hosts(self) -> list[str]:
        """What the user calls its nodes; none for processes on this computer."""
        return [str(node["name"]) for node in self.nodes if node.get("name")]

    @property
    def price(self) -> float | None:
        """Dollars an hour; ``None`` if it costs nothing, or if that is not known."""
        if stopped := self.spec.get("stopped"):
            return total_price([stopped.get("price")])
        return self.running_price

    @property
    def is_stopped(self) -> bool:
        """Whether its machines are stopped, or were when a kernel began to start them."""
        return bool(self.spec.get("stopped") or self.spec.get("starting"))

    @property
    def started(self) -> float:
        """When its machines were started after a stop, in seconds since the epoch, or 0."""
        return float(self.spec.get("started") or 0)

    @property
    def running_price(self) -> float | None:
        """Dollars an hour while its machines run, as far as it was known when they ran last."""
        if self.rent:
            return self.rent.price
        return total_price(node.get("price") for node in self.nodes)

    @property
    def rent(self) -> Rent | None:
        """What is rented for it, as long as it has no machines."""
        rent = None if self.machines else self.spec.get("rent")
        return rent and Rent(**rent)

    @property
    def ended(self) -> float | None:
        """When its machines have ended, in seconds since the epoch, if that was recorded."""
        return self.spec.get("ended")

    @property
    def ends_by(self) -> EndsBy:
        """When its machines end by themselves, as far as a notebook that used it has said that."""
        return EndsBy(**(self.spec.get("ends_by") or {}))

    @property
    def rate(self) -> CostRate:
        """What it costs an hour, in dollars or other units."""
        return rate_of(self.nodes, True) if self.spec.get("counts_hours") else CostRate(self.price)

    @property
    def meter(self) -> CostMeter:
        """What it had cost when its rate changed last."""
        spent, since = self.spec.get("meter") or (0.0, self.created)
        return CostMeter(float(spent), float(since))

    def cost(self, now: float) -> float | None:
        """Return what it has cost so far, in the unit of its rate; ``None`` if that is nothing."""
        return self.meter.cost(self.rate.amount, self._costs_until(now))

    def spent(self, now: float) -> Spent:
        """Return the time since its rate changed last, up to now or to its end."""
        place = str(self.spec.get("place") or self.provider)
        place += ", disks of it stopped" * bool(self.spec.get("stopped"))
        place += ledger.AT_MOST * bool(self.spec.get("ended_unseen"))
        # Neither the user's own machines count, nor those that are off.
        nodes = [] if self.rate.amount is None or self.spec.get("stopped") else self.nodes
        rent = self.rent
        size = (rent.nodes, rent.gpus) if rent else (len(nodes), gpus_of(nodes))
        times = self.meter.since, self._costs_until(now)
        return Spent(self.name, place, *times, self.price or 0.0, *size)

    def _costs_until(self, now: float) -> float:
        rent = self.rent
        return min(now, self.ended or now, rent.until if rent else now)

    @property
    def leaving(self) -> list[dict[str, Any]]:
        """Machines that do not belong to it yet, or no longer, and that may still be there."""
        return list(self.spec.get("leaving", []))

    @property
    def progress(self) -> str:
        """How its start got on when that was recorded last, if its nodes are queued for."""
        return str(self.spec.get("progress") or "")

    @property
    def is_elsewhere(self) -> bool:
        """Whether it consists of processes on another computer, which shares this registry."""
        here = socket.gethostname()
        return any(machine.get("computer", here) != here for machine in self.machines)

    @property
    def is_starting(self) -> bool:
        """Whether a process may be starting it: it has no machines yet, or stopped ones."""
        if self.machines:
            process = self.spec.get("starting") or {}
            return processes.is_there(process, process.get("since", 0.0))
        starter = self.spec.get("starter") or {}
        if starter.get("computer") != socket.gethostname():
            within = RENT_WITHIN if self.spec.get("place") else START_WITHIN
            return time.time() - self.created < within
        return self.has_starter

    @property
    def has_starter(self) -> bool:
        """Whether the process that started it is there, on this computer."""
        return processes.is_there(self.spec.get("starter") or {}, self.created)

    @property
    def may_grow(self) -> bool:
        """Whether machines may be coming of which the row does not know."""
        grower = self.spec.get("grower") or {}
        return bool(grower) and (
            grower.get("computer") != socket.gethostname()
            or processes.is_there(grower, grower.get("since", 0.0))
        )

    @property
    def is_being_scaled(self) -> bool:
        """Whether another process of this computer is scaling it: machines come or leave."""
        return self._is_scaled and not self.is_scaled_here

    @property
    def is_changed_elsewhere(self) -> bool:
        """Whether another process of this computer is adding or removing machines."""
        grower = self.spec.get("grower") or {}
        is_other = grower.get("pid") != os.getpid() and processes.is_there(
            grower, grower.get("since", 0.0)
        )
        return is_other or self.is_being_scaled

    @property
    def is_scaled_here(self) -> bool:
        """Whether this process is scaling it."""
        return self._is_scaled and self.spec["scaler"].get("pid") == os.getpid()

    @property
    def _is_scaled(self) -> bool:
        scaler = self.spec.get("scaler") or {}
        return bool(self.leaving) and processes.is_there(scaler, scaler.get("since", 0.0))


@dataclass(frozen=True)
class Broken:
    """A row that cannot be read: half-written, or of another version."""

    id: str
    name: str


def describe(spec: ClusterSpec, plugins: Sequence[str]) -> dict[str, Any]:
    """Return a spec as a row keeps it: of its image, whose variables can be secrets, the base."""
    row = {name: getattr(spec, name) for name in ("nodes", "procs_per_node", "cpus", "memory")}
    accelerator = spec.accelerator
    row["accelerator"] = str(accelerator) if accelerator is not None else None
    row["idle_timeout"], row["replace"] = spec.idle_timeout, spec.replace
    row["patience"], row["unattended"] = spec.patience, spec.unattended
    row["autostop"] = spec.autostop
    row["plugins"] = list(plugins)
    row["base"] = {
        "like": spec.image.like,
        "pins": [without_secrets(each) for each in spec.image.pins],
        "wheels": list(spec.image.wheels),
        "variables": list(spec.image.env),
    }
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


def record_machines(
    identity: str, machines: Sequence[dict[str, Any]], since: float | None = None
) -> None:
    """Record the machines of a cluster, that count from then on, or since its row was made."""
    meter = json.dumps(None if since is None else [0.0, since])
    with opened() as database:
        database.execute(
            "UPDATE clusters SET machines = ?, spec = json_set(spec, '$.meter', json(?)) "
            "WHERE id = ?",
            (json.dumps(machines), meter, identity),
        )


def record_size(
    identity: str,
    nodes: int,
    machines: Sequence[dict[str, Any]],
    leaving: Sequence[dict[str, Any]] = (),
) -> None:
    """Record the size of a cluster.

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
    now = time.time()
    row = next((row for row in rows() if row.id == identity), None)
    # From now on its rate is another.
    meter = None if row is None or row.rate.amount is None else [row.cost(now), now]
    scaler = {**processes.describe(), "since": now} if leaving else None
    changes = [nodes, *map(json.dumps, (leaving, meter, scaler))]
    with opened() as database:
        if row is not None:
            ledger.write(database, row.spent(now))
        database.execute(
            "UPDATE clusters SET machines = ?, spec = json_set(spec, '$.nodes', ?, "
            "'$.leaving', json(?), '$.meter', json(?), '$.scaler', json(?)) WHERE id = ?",
            (json.dumps(machines), *changes, identity),
        )


def record_in_spec(identity: str, name: str, value: object) -> None:
    """Record one thing of a cluster's spec, as JSON has it."""
    with opened() as database:
        database.execute(
            "UPDATE clusters SET spec = json_set(spec, ?, json(?)) WHERE id = ?",
            (f"$.{name}", json.dumps(value), identity),
        )


def clear_starter(identity: str) -> None:
    """Clear the starter of a cluster; resources of it may still exist."""
    record_in_spec(identity, "starter", {"computer": socket.gethostname(), "pid": 0})


def remove(identity: str) -> None:
    """Remove the row of a cluster of which nothing is left; what it has cost is kept."""
    spent = [row.spent(time.time()) for row in rows() if row.id == identity]
    with opened() as database:
        for each in spent:
            ledger.write(database, each)
        database.execute("DELETE FROM clusters WHERE id = ?", (identity,))
    owed_runs.forget(identity)


def find(name: str) -> RegistryRow | None:
    """Return the cluster of that name."""
    return next((row for row in rows() if row.name == name), None)


def find_broken(name: str) -> Broken | None:
    """Return the row of that name if it cannot be read."""
    return next((row for row in read() if isinstance(row, Broken) and row.name == name), None)


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
        found = database.execute(
            "SELECT id, name, provider, spec, machines, created FROM clusters ORDER BY created"
        ).fetchall()
    return [_row(*each) for each in found]


def _row(
    identity: str, name: str, provider: str, spec: str, machines: str, created: float
) -> RegistryRow | Broken:
    try:
        made = RegistryRow(
            identity, name, provider, json.loads(spec), json.loads(machines), created
        )
    except (TypeError, ValueError):
        return Broken(str(identity), str(name))
    sound = (
        all(isinstance(each, str) for each in (identity, name, provider))
        and isinstance(created, float | int)
        and tables.is_sound(made.spec, made.machines)
    )
    return made if sound else Broken(str(identity), str(name))


@contextlib.contextmanager
def opened() -> Iterator[sqlite3.Connection]:
    """Give the database; what is done in it is written together, or not at all.

    It blocks while another process writes, or holds it for longer.
    """
    if event_loop.is_here():
        raise RuntimeError("the registry may block: use it in a thread, with `tasks.blocking`")
    path = home() / "registry.sqlite"
    try:
        with contextlib.suppress(OSError):  # the database says what is wrong
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(path, timeout=WAIT)
        try:
            with database:
                database.execute(tables.CLUSTERS)
                database.execute(tables.OWED_ENDS)
                database.execute(ledger.SCHEMA)
                database.execute(ledger.EARLIER_SCHEMA)
                yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise RegistryError(f"{path} cannot be used ({error}): {tables.advice(error)}.") from None
