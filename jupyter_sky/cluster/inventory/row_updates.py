"""Updates of a cluster's row: how its start gets on, what it gets after that, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from jupyter_sky.cluster.inventory.registry import RegistryError, RowChange, change, update
from jupyter_sky.cluster.inventory.seals import seal
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.inventory.storage.row import EndsBy, RegistryRow, Rent
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.state import ClusterPhase, ClusterState
from jupyter_sky.errors import ClusterLost
from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.base import Progress, Provider, StartingAgents
from jupyter_sky.providers.cloud import CloudProvider
from jupyter_sky.providers.progress import Preparation, Rented
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.tasks import blocking

_SIGN_EVERY = 60.0
"""Seconds between two signs in the registry that machines are being made nodes, or are used."""

_GONE_WITHIN = 300.0
"""Seconds for machines to end whose agents have ended by themselves."""


class Used(Protocol):
    """A cluster that is used, as far as this has to know it: its controller."""

    id: str
    spec: ClusterSpec
    state: ClusterState

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections to its agents."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true."""


def record_progress(identity: str, text: str) -> None:
    """Record how the start of a cluster gets on, in words."""
    change(identity, {"progress": text})


def keep_agents(identity: str, provider: Provider, progress: Progress) -> Progress:
    """Return progress that records agents that are about to be started, and passes the rest on.

    Until the cluster has them, they are machines that do not belong to it yet. What is rented is
    more than its agents, and its provider finds it without the registry.
    """

    def say(said: str | Preparation) -> None:
        if not isinstance(said, StartingAgents):
            progress(said)
        elif not isinstance(provider, CloudProvider):
            rows = [machine.row() for machine in said.machines]
            by = {**processes.describe(), "since": time.time()}
            change(identity, {"leaving": rows, "scaler": by})

    return say


def forget_agents(identity: str) -> None:
    """Record that no agents are being started any more, as none of them is there."""
    change(identity, {"leaving": [], "scaler": None})


def record_rent(identity: str, rent: Rent, since: float) -> None:
    """Record what is rented for a cluster whose machines are no nodes yet, and since when."""
    change(identity, {"meter": [0.0, since], "rent": asdict(rent)})


async def keep_rent(identity: str, rented: Rented, since: float) -> None:
    """Keep in the registry what machines cost that are no nodes yet, should this be killed."""
    if not rented.nodes:
        with contextlib.suppress(RegistryError):
            await blocking(change, identity, {"rent": None})
        return
    while True:
        until = time.time() + _SIGN_EVERY + rented.ends_within
        rent = Rent(rented.price, rented.nodes, rented.gpus, until)
        with contextlib.suppress(RegistryError):
            await blocking(record_rent, identity, rent, since)
        await asyncio.sleep(_SIGN_EVERY)


async def keep_use(cluster: Used, grace: float) -> None:
    """Keep in the registry when machines end by themselves, should this process end first.

    Nobody else may be able to say days later when they have ended.

    Parameters
    ----------
    grace
        Seconds without a notebook and without a run after which their agents end.
    """
    busy = False

    def is_news() -> bool:
        return not busy and bool(cluster.state.busy_runs)

    while not all(each.is_over for each in cluster.connections):
        busy = bool(cluster.state.busy_runs)
        within = cluster.spec.unattended if busy else grace
        by = EndsBy(time.time() + within + _GONE_WITHIN, not busy)
        if any(each.is_up for each in cluster.connections):
            with contextlib.suppress(RegistryError):
                await blocking(change, cluster.id, {"ends_by": asdict(by)})
        try:
            async with asyncio.timeout(_SIGN_EVERY):
                await cluster.until(is_news)
        except TimeoutError:
            continue
        except ClusterLost:
            if cluster.state.phase is ClusterPhase.LOST:
                return
            # A rank is dead, or the machines are being ended or stopped, which may be refused.
            await asyncio.sleep(_SIGN_EVERY)


def record_line(identity: str, line: str) -> None:
    """Record the magic line that makes a cluster, without the passwords of its addresses."""
    change(identity, {"line": without_secrets(line)})


def record_limit(identity: str, limit: float | None) -> None:
    """Record the dollars that a cluster may cost in its life, if its line says another limit."""
    change(identity, {"limit": limit})


def record_end(identity: str, when: float) -> None:
    """Record when the machines of a cluster have ended, and with them what it costs.

    Parameters
    ----------
    when
        Infinite if only that they have is known: they have cost something until `ends_by` at most.
    """

    def decide(row: RegistryRow | None) -> RowChange | None:
        if row is None or row.ended:
            return None
        if when < math.inf:
            return RowChange({"ended": when})
        by = row.ends_by
        return RowChange({"ended_unseen": not by.is_idle, "ended": min(by.time, time.time())})

    update(identity, decide)


def record_packages(identity: str, added: Sequence[str]) -> None:
    """Record what was installed on a cluster since it began, without passwords."""
    change(identity, {"added": list(added)})


def record_variables(identity: str, new: Mapping[str, str]) -> None:
    """Record the seals of new values of environment variables."""
    sealed = {name: seal(value) for name, value in new.items()}

    def decide(row: RegistryRow | None) -> RowChange | None:
        return RowChange({"seals": {**row.spec.get("seals", {}), **sealed}}) if row else None

    update(identity, decide)


def record_plugins(identity: str, plugins: Sequence[str]) -> None:
    """Record the plugins of a cluster that has got more of them."""
    change(identity, {"plugins": list(plugins)})
