"""The row of a cluster in the registry, and what can be told from it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from jupyter_sky.cluster.cost_meter import CostMeter, CostRate, gpus_of, rate_of, total_price
from jupyter_sky.cluster.inventory.storage import ledger, processes
from jupyter_sky.cluster.inventory.storage.ledger import Spent
from jupyter_sky.providers.local.computer import is_this
from jupyter_sky.transport.protocol.shape import check_for

START_WITHIN = 600.0
"""Seconds after which a cluster without machines is taken for one that never came up, and one that
another computer was scaling for one that it no longer scales.
"""

RENT_WITHIN = 3 * 3600.0
"""The same for machines that are rented from another computer: they boot, and install much."""


@dataclass(frozen=True)
class Rent:
    """What is rented for a cluster whose machines are no nodes yet.

    Attributes
    ----------
    price
        Dollars an hour of all machines; ``None`` if that is not known.
    nodes, gpus
        How many they are, and how many GPUs they have together.
    until
        When they have ended by themselves if nobody goes on with them, in seconds since the epoch.
    """

    price: float | None
    nodes: int
    gpus: int
    until: float


@dataclass(frozen=True)
class EndsBy:
    """When machines end by themselves if no notebook uses them any more.

    Attributes
    ----------
    time
        In seconds since the epoch; infinite if that is not known.
    is_idle
        Whether nothing ran on them, so that they end soon; a run may go on for days, or not.
    """

    time: float = math.inf
    is_idle: bool = False


@dataclass(frozen=True)
class RegistryRow:
    """A cluster in the registry; ``spec`` and ``machines`` are plain data."""

    id: str
    name: str
    provider: str
    spec: dict[str, Any]
    machines: list[dict[str, Any]]
    created: float

    # Its machines

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Its nodes, as far as they can be made out."""
        return [node for each in self.machines for node in each["nodes"] if isinstance(node, dict)]

    @property
    def hosts(self) -> list[str]:
        """What the user calls its nodes; none for processes on this computer."""
        return [str(node["name"]) for node in self.nodes if node.get("name")]

    @property
    def leaving(self) -> list[dict[str, Any]]:
        """Machines that do not belong to it yet, or no longer, and that may still be there."""
        return list(self.spec.get("leaving", []))

    @property
    def is_elsewhere(self) -> bool:
        """Whether it consists of processes on another computer, which shares this registry."""
        return bool(self.elsewhere)

    @property
    def elsewhere(self) -> str:
        """The name of the other computer that it is on, if it is on one."""
        named = [each for each in self.machines if each.get("computer")]
        others = [each for each in named if not is_this(each["computer"], each.get("booted"))]
        return str(others[0]["computer"]) if others else ""

    # Its life

    @property
    def progress(self) -> str:
        """How its start got on when that was recorded last, if its nodes are queued for."""
        return str(self.spec.get("progress") or "")

    @property
    def is_stopped(self) -> bool:
        """Whether its machines are stopped, or were when a kernel began to start them."""
        return bool(self.spec.get("stopped") or self.spec.get("starting"))

    @property
    def started(self) -> float:
        """When its machines were started after a stop, in seconds since the epoch, or 0."""
        return float(self.spec.get("started") or 0)

    @property
    def ended(self) -> float | None:
        """When its machines have ended, in seconds since the epoch, if that was recorded."""
        return self.spec.get("ended")

    @property
    def ends_by(self) -> EndsBy:
        """When its machines end by themselves, as far as a notebook that used it has said that."""
        return EndsBy(**(self.spec.get("ends_by") or {}))

    @property
    def grace(self) -> float | None:
        """Seconds without a notebook and without a run after which it ends, if that is known."""
        return self.spec.get("grace")

    # What it costs

    @property
    def price(self) -> float | None:
        """Dollars an hour; ``None`` if it costs nothing, or if that is not known."""
        if off := self._off:
            return total_price([off.get("price")])
        return self.running_price

    @property
    def _off(self) -> Mapping[str, Any] | None:
        """What was recorded when its machines were stopped, until they are really started again."""
        return self.spec.get("stopped") or (self.spec.get("starting") or {}).get("stopped")

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
        if self._off:
            place += ", disks of it stopped"
        if self.spec.get("ended_unseen"):
            place += ledger.AT_MOST
        # Neither the user's own machines count, nor those that are off.
        nodes = [] if self.rate.amount is None or self._off else self.nodes
        rent = self.rent
        size = (rent.nodes, rent.gpus) if rent else (len(nodes), gpus_of(nodes))
        times = self.meter.since, self._costs_until(now)
        return Spent(self.name, place, *times, self.price or 0.0, *size)

    def _costs_until(self, now: float) -> float:
        rent = self.rent
        return min(now, self.ended or now, rent.until if rent else now)

    # Processes that change it: its starter, its grower that adds machines, its scaler and installer

    @property
    def is_starting(self) -> bool:
        """Whether a process may be starting it: it has no machines yet, or stopped ones."""
        if self.machines:
            return self._is_there("starting")
        if self.has_starter or self._is_here("starter"):
            return self.has_starter
        within = RENT_WITHIN if self.spec.get("place") else START_WITHIN
        return time.time() - self.created < within

    @property
    def has_starter(self) -> bool:
        """Whether the process that started it is there, on this computer."""
        return self._is_there("starter")

    @property
    def was_started_here(self) -> bool:
        """Whether this process has started it, or begun to."""
        return self.has_starter and self._is_this("starter")

    @property
    def may_grow(self) -> bool:
        """Whether machines may be coming of which the row does not know."""
        return self._may_be_there("grower", RENT_WITHIN)

    @property
    def is_changed_elsewhere(self) -> bool:
        """Whether another process of this computer is adding or removing machines."""
        is_scaled = bool(self.leaving) and self._is_another("scaler")
        return is_scaled or self._is_another("grower")

    @property
    def is_installed_elsewhere(self) -> bool:
        """Whether another process of this computer is installing packages on it."""
        return self._is_another("installer")

    @property
    def is_being_scaled(self) -> bool:
        """Whether another process is scaling it, or may be: machines come or leave."""
        if not self.leaving or self.is_scaled_here:
            return False
        return self._may_be_there("scaler", START_WITHIN)

    @property
    def is_scaled_here(self) -> bool:
        """Whether this process is scaling it."""
        return bool(self.leaving) and self._is_there("scaler") and self._is_this("scaler")

    def _process(self, role: str) -> Mapping[str, Any]:
        return self.spec.get(role) or {}

    def _is_here(self, role: str) -> bool:
        return bool(self._process(role).get("computer") == socket.gethostname())

    def _is_this(self, role: str) -> bool:
        return bool(self._process(role).get("pid") == os.getpid())

    def _is_another(self, role: str) -> bool:
        return self._is_there(role) and not self._is_this(role)

    def _may_be_there(self, role: str, within: float) -> bool:
        process = self._process(role)
        if not process or self._is_here(role) or self._is_there(role):
            return self._is_there(role)
        # On another computer, which may be gone by now, as containers are.
        return bool(time.time() - process.get("since", self.created) < within)

    def _is_there(self, role: str) -> bool:
        process = self._process(role)
        return processes.is_there(process, process.get("since", self.created))


def unreadable(name: str) -> str:
    """Return what is said of a cluster whose row cannot be read where it was to be used."""
    return (
        f"the entry of cluster {name} in the registry cannot be read: use it with the version of "
        f"jupyter_sky that started it, or remove it with `%sky down {name}`."
    )


def runs_elsewhere(row: RegistryRow) -> str:
    """Return what is said of a cluster on another computer where it was to be used."""
    there = row.elsewhere
    return (
        f"cluster {row.name} runs on {there}, which shares its registry with this computer: use it "
        f"there, or another name here with `--cluster NAME`; if {there} is gone, "
        f"`%sky down --discard {row.name}` forgets it."
    )


@dataclass(frozen=True)
class Broken:
    """A row that cannot be read: half-written, or of another version."""

    id: str
    name: str
    provider: str


def parse(
    identity: str, name: str, provider: str, spec: str, machines: str, created: float
) -> RegistryRow | Broken:
    """Return a row of the table; one that cannot be read keeps no other away."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        row = RegistryRow(identity, name, provider, json.loads(spec), json.loads(machines), created)
        if _is_sound(row):
            return row
    return Broken(str(identity), str(name), str(provider))


def _is_sound(row: RegistryRow) -> bool:
    """Return whether a row has what is asked of all rows."""
    return all(check_for(hint)(getattr(row, name)) for name, hint in _ASKED.items())


class _Rent(TypedDict):
    price: float | None
    nodes: int
    gpus: int
    until: float


class _EndsBy(TypedDict):
    time: float
    is_idle: bool


class _Spec(TypedDict):
    nodes: int
    meter: NotRequired[tuple[float, float] | None]
    rent: NotRequired[_Rent | None]
    ends_by: NotRequired[_EndsBy | None]
    leaving: NotRequired[list[_Machine]]
    starter: NotRequired[_Process | None]
    starting: NotRequired[_Starting | None]
    grower: NotRequired[_Process | None]
    scaler: NotRequired[_Process | None]
    installer: NotRequired[_Process | None]
    stopped: NotRequired[_Stopped | None]
    started: NotRequired[float | None]
    ended: NotRequired[float | None]
    limit: NotRequired[float | None]
    unattended: NotRequired[float]
    grace: NotRequired[float | None]
    place: NotRequired[str | None]
    line: NotRequired[str]
    base: NotRequired[dict[str, Any] | None]


class _Process(TypedDict):
    computer: str
    pid: int
    mark: NotRequired[str | None]
    since: NotRequired[float]


class _Stopped(TypedDict):
    since: float
    price: float | None


class _Starting(_Process):
    stopped: NotRequired[_Stopped | None]


class _Node(TypedDict):
    ranks: NotRequired[list[Any]]


class _Machine(TypedDict):
    nodes: list[_Node]


_ASKED: Mapping[str, Any] = {
    **dict.fromkeys(("id", "name", "provider"), str),
    "spec": _Spec,
    "machines": list[_Machine],
    "created": float,
}
