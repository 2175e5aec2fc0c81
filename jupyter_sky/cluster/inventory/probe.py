"""Probing clusters from outside: what their agents say, without attaching to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jupyter_sky.cluster.inventory import registry, row_updates, stops
from jupyter_sky.cluster.inventory.machines import UnreadableRow, machines_of
from jupyter_sky.cluster.inventory.stops import ClusterStopped
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.network.connection import Connection, ConnectionListener
from jupyter_sky.cluster.state import ClusterPhase, ClusterState
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import plain
from jupyter_sky.providers.base import AgentGone, Machine, Provider
from jupyter_sky.providers.cloud import CloudProvider, Stoppable
from jupyter_sky.providers.local import Local
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.tasks import blocking, cancel_all

ANSWER_WITHIN = 2.0
"""Seconds for the agents of a cluster to answer: a list of clusters should not take longer."""

LOGIN_WITHIN = 10.0
"""The same where a machine is answering: a login takes longer from far away, or if it is busy."""

_LOOK_EVERY = 0.1  # seconds

ASK_WITHIN = 10.0
"""Seconds for a provider to say whether machines that do not answer have ended."""


class ProbePhase(StrEnum):
    """How a cluster is, as far as a probe can tell.

    ``STOPPED`` is one whose machines are off and whose disks are there; ``GONE`` one of which an
    agent has ended; ``UNREACHABLE`` one of which an agent does not answer; ``ELSEWHERE`` one on
    another computer that shares this registry; ``UNKNOWN`` one whose provider or machines this
    version does not know; ``DOWN`` one that this process has ended.
    """

    STARTING = "starting"
    IDLE = "idle"
    RUNNING = "running"
    ENDING = "ending"
    STOPPED = "stopped"
    GONE = "gone"
    UNREACHABLE = "unreachable"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"
    DOWN = "down"


@dataclass(frozen=True)
class ProbeResult:
    """What a probe of a cluster has found.

    Attributes
    ----------
    phase
        How it is.
    busy
        The ranks that run something.
    title, seconds
        What the user calls the run that began there last, and for how long it goes on, as far as
        its nodes have told.
    """

    phase: ProbePhase
    busy: tuple[int, ...] = ()
    title: str = ""
    seconds: float = 0.0

    @classmethod
    def of_state(cls, state: ClusterState) -> ProbeResult:
        """Return what a probe would find of a cluster that this process is connected to."""
        if state.phase is not ClusterPhase.READY:
            return cls(_PHASES[state.phase])
        busy = tuple(rank.rank for rank in state.ranks if rank.run)
        return cls(ProbePhase.RUNNING if busy else ProbePhase.IDLE, busy)


_PHASES = {
    ClusterPhase.STARTING: ProbePhase.STARTING,
    ClusterPhase.LOST: ProbePhase.GONE,
    ClusterPhase.DOWN: ProbePhase.DOWN,
}


def probe(rows: Sequence[RegistryRow], providers: Mapping[str, Provider]) -> list[ProbeResult]:
    """Probe clusters, all at once.

    Parameters
    ----------
    rows
        The clusters.
    providers
        The providers by their name.
    """

    async def probe_all() -> list[ProbeResult]:
        return await asyncio.gather(*(_probe(row, providers) for row in rows))

    return event_loop.wait(probe_all())


def probe_local(rows: Sequence[RegistryRow]) -> dict[str, str]:
    """Return the phases of those clusters whose nodes are on this computer, by their ids."""
    here = [row for row in rows if row.provider == Local.name and not row.is_elsewhere]
    results = probe(here, {Local.name: Local()})
    return {row.id: result.phase for row, result in zip(here, results, strict=True)}


async def has_agent(row: RegistryRow, provider: Provider) -> bool:
    """Return whether any agent of a cluster is there, or may be where that cannot be seen."""
    if row.provider != provider.name or row.is_elsewhere:
        return True
    try:
        machines = machines_of(row, provider)
    except UnreadableRow:
        return True
    for machine in machines:
        try:
            (await machine.open()).close()
        except AgentGone:
            continue
        except OSError:
            pass  # it may be there, behind a link that is broken
        return True
    return False


async def _probe(row: RegistryRow, providers: Mapping[str, Provider]) -> ProbeResult:
    if row.provider not in providers:
        return ProbeResult(ProbePhase.UNKNOWN)
    if row.is_starting:
        return ProbeResult(ProbePhase.STARTING)
    if row.is_elsewhere:
        return ProbeResult(ProbePhase.ELSEWHERE)
    provider = providers[row.provider]
    try:
        machines = machines_of(row, provider)
    except UnreadableRow:
        return ProbeResult(ProbePhase.UNKNOWN)
    if row.is_stopped and isinstance(provider, Stoppable):
        return ProbeResult(await _probe_stopped(row, provider, machines))
    answers = await asyncio.gather(*map(_welcome_in_time, machines), return_exceptions=True)
    gone = {at for at, each in enumerate(answers) if isinstance(each, AgentGone)}
    if any(isinstance(each, BaseException) for each in answers):
        gone |= await _ended(row, provider, machines)
        if phase := await _has_stopped(row, provider, machines):
            return ProbeResult(phase)
    # Others may be about to take the place of some.
    if gone and (len(gone) == len(machines) or not row.spec.get("replace")):
        return ProbeResult(ProbePhase.GONE)
    welcomes = [each for each in answers if not isinstance(each, BaseException)]
    if len(welcomes) < len(machines):
        return ProbeResult(ProbePhase.UNREACHABLE)
    if not welcomes or any(welcome["ending"] for welcome in welcomes):
        return ProbeResult(ProbePhase.ENDING if welcomes else ProbePhase.GONE)
    ranks = [rank for welcome in welcomes for rank in welcome["ranks"]]
    busy = tuple(sorted(rank["rank"] for rank in ranks if rank["run"]))
    if not busy:
        return ProbeResult(ProbePhase.IDLE)
    runs = {rank["run"] for rank in ranks}
    begun = [each["latest"] for each in welcomes if each["latest"]]
    last = min(
        (each for each in begun if each["run"] in runs),
        key=lambda each: each["seconds"],
        default=None,
    )
    title, seconds = (plain(last["title"]), last["seconds"]) if last else ("", 0.0)
    return ProbeResult(ProbePhase.RUNNING, busy, title, seconds)


async def _probe_stopped(
    row: RegistryRow, provider: Stoppable, machines: Sequence[Machine]
) -> ProbePhase:
    """Return how a stopped cluster is: machines that run are not taken for stopped."""
    try:
        async with asyncio.timeout(ASK_WITHIN):
            if await stops.find_stopped(row, provider, machines):
                return ProbePhase.STOPPED
            if None not in await provider.ended_at(machines):
                return ProbePhase.GONE
    except (SkyError, TimeoutError):
        return ProbePhase.STOPPED if row.spec.get("stopped") else ProbePhase.UNREACHABLE
    return ProbePhase.UNREACHABLE


async def _has_stopped(
    row: RegistryRow, provider: Provider, machines: Sequence[Machine]
) -> ProbePhase | None:
    """Return how a cluster is of which machines do not answer, if they are off or about to be."""
    if not isinstance(provider, Stoppable):
        return None
    try:
        async with asyncio.timeout(ASK_WITHIN):
            await stops.refuse(row, provider)
    except ClusterStopped:
        now = await blocking(registry.with_id, row.id) or row
        return ProbePhase.STOPPED if now.is_stopped else ProbePhase.ENDING
    except (SkyError, TimeoutError):
        pass
    return None


async def record_end(identity: str, provider: Provider) -> float | None:
    """Record when all machines of a cluster have ended that do not answer, and return it.

    Returns
    -------
    float or None
        In seconds since the epoch; ``None`` if one has not, or that cannot be determined.
    """
    with contextlib.suppress(registry.RegistryError, UnreadableRow):
        row = await blocking(registry.with_id, identity)
        if row and row.provider == provider.name:
            await _ended(row, provider, machines_of(row, provider))
            row = await blocking(registry.with_id, identity)
        return row.ended if row else None
    return None


async def _ended(row: RegistryRow, provider: Provider, machines: Sequence[Machine]) -> set[int]:
    """Return which of some machines have ended that do not answer, as far as their provider says.

    When all have, what the cluster costs has ended with the last of them.
    """
    if not isinstance(provider, CloudProvider):
        return set()
    try:
        async with asyncio.timeout(ASK_WITHIN):
            ended = await provider.ended_at(machines)
    except (SkyError, TimeoutError):
        return set()
    times = [each for each in ended if each is not None]
    if machines and len(times) == len(machines):
        with contextlib.suppress(registry.RegistryError):
            await blocking(row_updates.record_end, row.id, max(times))
    return {at for at, each in enumerate(ended) if each is not None}


async def _welcome_in_time(machine: Machine) -> Welcome:
    """Return the welcome message of an agent, unless its machine does not answer.

    Raises
    ------
    TimeoutError
        If it does not.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = loop.create_task(_welcome(machine))
    try:
        await asyncio.wait({asked}, timeout=ANSWER_WITHIN)
        while not asked.done() and machine.is_answering and loop.time() - began < LOGIN_WITHIN:
            await asyncio.wait({asked}, timeout=_LOOK_EVERY)
        if not asked.done():
            raise TimeoutError
        return asked.result()
    finally:
        await cancel_all({asked})


async def _welcome(machine: Machine) -> Welcome:
    """Return the welcome message of an agent, as a visitor."""
    connection = Connection(machine, ConnectionListener(), visits=True)
    try:
        return await connection.open(since=None)
    finally:
        connection.close()
