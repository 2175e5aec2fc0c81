"""Clusters that are stopped: their machines are off, their disks are there and cost something."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.cluster.cost_meter import CostMeter
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.machines import machines_of
from jupyter_sky.cluster.inventory.registry import RowChange
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.base import Machine, Provider
from jupyter_sky.providers.cloud import Stoppable
from jupyter_sky.transport.tasks import blocking


@dataclass(frozen=True)
class DiskCost:
    """What the disks of stopped machines cost.

    Attributes
    ----------
    price
        Dollars an hour; ``None`` if that is not known.
    left
        Dollars that are left of ``--max-cost``, less than none once it is spent; ``None`` without.
    """

    price: float | None
    left: float | None = None

    @property
    def seconds(self) -> float | None:
        """For how long the rest of ``--max-cost`` pays the disks, if both are known."""
        if self.left is None or not self.price:
            return None
        return max(0.0, 3600 * self.left / self.price)


class ClusterStopped(SkyError):
    """A cluster is stopped: it can be started again."""


def sentence(name: str) -> str:
    """Return what is said of a stopped cluster where it was to be used."""
    return (
        f"cluster {name} is stopped: `%sky start {name}` starts it again, and `%sky down {name}` "
        "ends it with its disks."
    )


async def refuse(row: RegistryRow, provider: Provider) -> None:
    """Refuse to take a cluster for lost, and to end it, whose machines are only stopped.

    Raises
    ------
    ClusterStopped
        When one of them is, or is about to be.
    """
    if row.is_stopped:
        raise ClusterStopped(sentence(row.name))
    if not isinstance(provider, Stoppable) or row.provider != provider.name:
        return
    machines = machines_of(row, provider)
    if not machines:
        return
    if any(await provider.stopped_at(machines)):
        await find_stopped(row, provider, machines)
        raise ClusterStopped(sentence(row.name))
    if row.spec.get("autostop") and None in await provider.ended_at(machines):
        raise ClusterStopped(
            f"cluster {row.name} is about to stop by itself: `%sky start {row.name}` starts it "
            f"again then, and `%sky down {row.name}` ends it with its disks."
        )


async def find_stopped(row: RegistryRow, provider: Stoppable, machines: Sequence[Machine]) -> bool:
    """Return whether all machines of a cluster are stopped, and record it if that is new."""
    times = [each for each in await provider.stopped_at(machines) if each is not None]
    if not machines or len(times) < len(machines):
        return False
    if not row.spec.get("stopped"):
        price = await provider.storage_price(machines)
        with contextlib.suppress(registry.RegistryError):
            await blocking(record_stop, row.id, max(times), DiskCost(price))
    return True


def are_possible(provider: Provider, machines: Sequence[Machine]) -> bool:
    """Return whether a provider can stop machines and start them again."""
    if not isinstance(provider, Stoppable):
        return False
    try:
        provider.check_stop(machines)
    except UsageError:
        return False
    return True


def record_possible(identity: str) -> None:
    """Record that the machines of a cluster can be stopped, for who does not ask its provider."""
    registry.change(identity, {"stoppable": True})


def disk_cost(row: RegistryRow, now: float) -> DiskCost:
    """Return what the disks of a stopped cluster cost, and what is left of its ``--max-cost``."""
    return DiskCost(row.price, money_left(row, now))


def limit_of(row: RegistryRow) -> float | None:
    """Return the dollars that a cluster may cost in its life, if it was given a limit later.

    One that keeps its disks has none, though earlier versions have recorded some.
    """
    limit = None if row.spec.get("autostop") else row.spec.get("limit")
    return None if limit is None else float(limit)


def money_left(row: RegistryRow, now: float) -> float | None:
    """Return the dollars that a cluster may cost yet which was stopped; ``None`` without a limit.

    Its disks count as far as their price is known. If it was never stopped, its machines know.
    """
    limit = limit_of(row)
    if limit is None:
        return None
    return limit - _spent(row, now)


def record_stop(identity: str, when: float, cost: DiskCost) -> None:
    """Record that the machines of a cluster are stopped.

    Parameters
    ----------
    when
        Since when, in seconds since the epoch.
    cost
        What their disks cost; without ``left``, the limit stays the one that is known.
    """

    def decide(row: RegistryRow | None) -> RowChange | None:
        # Others may have seen it at the same time.
        if row is None or row.spec.get("stopped"):
            return None
        since = max(when, row.meter.since)
        changes: dict[str, Any] = {"stopped": {"since": since, "price": cost.price}}
        changes |= {"starting": None, "ends_by": None}  # disks stay
        if cost.left is not None:
            # All that it may cost in its life, so that disks count, and starts that fail.
            changes["limit"] = _spent(row, since) + cost.left
        return _at_another_price(row, since, changes)

    registry.update(identity, decide)


def record_begin(row: RegistryRow) -> CostMeter:
    """Record that this process is about to start the machines of a stopped cluster.

    Until `record_running`, it costs what its disks do: the user may be asked before.

    Returns
    -------
    CostMeter
        What it has cost until now.

    Raises
    ------
    UsageError
        If another process is about to.
    """
    starter, meters = processes.describe(), list[CostMeter]()

    def decide(now_there: RegistryRow | None) -> RowChange:
        there, now = now_there or row, time.time()
        if there.spec.get("starting") and there.is_starting:
            raise UsageError(being_started(row.name))
        spent = _spent(there, now)
        starting = {**starter, "since": now, "stopped": there.spec.get("stopped")}
        changes: dict[str, Any] = {"stopped": None, "starting": starting}
        meters.append(CostMeter(spent, now))
        return _at_another_price(there, now, changes)

    registry.update(row.id, decide)
    return meters[0]


def record_running(identity: str, money: float | None = None) -> CostMeter | None:
    """Record that the machines of a cluster are started now, and cost what running ones do.

    Parameters
    ----------
    money
        A new limit: dollars that it may cost from now on. It holds from here on, as a start that
        was refused before changes nothing.

    Returns
    -------
    CostMeter or None
        What it has cost until now; ``None`` if it was ended meanwhile.
    """
    meters = list[CostMeter]()

    def decide(row: RegistryRow | None) -> RowChange | None:
        if row is None:
            return None
        now = time.time()
        spent = _spent(row, now)
        meters.append(CostMeter(spent, now))
        changes: dict[str, Any] = {"stopped": None}
        if money is not None:
            changes["limit"] = spent + money
        if starting := row.spec.get("starting"):
            changes["starting"] = {**starting, "stopped": None}
        return _at_another_price(row, now, changes)

    registry.update(identity, decide)
    return meters[0] if meters else None


def being_started(name: str) -> str:
    """Return what is said of a stopped cluster that another process starts."""
    return f"cluster {name} is being started by another notebook: wait for it."


def record_start(identity: str, machines: Sequence[dict[str, Any]]) -> None:
    """Record that a cluster is up again, and where its machines are reached now."""
    changes = {"starting": None, "stopped": None, "started": time.time()}
    registry.change(identity, changes, machines)


def _at_another_price(row: RegistryRow, when: float, changes: dict[str, Any]) -> RowChange:
    """Return changes after which a cluster has another price."""
    meter = [_spent(row, when), when]
    return RowChange({**changes, "meter": meter}, spent=row.spent(when))


def _spent(row: RegistryRow, when: float) -> float:
    """Return what a cluster has cost; while its price is not known, what it had cost before."""
    return row.cost(when) or row.meter.spent
