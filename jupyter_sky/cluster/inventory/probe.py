"""A look at clusters from outside: what their agents say, without taking them up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.providers.base import AgentGone, Machine, Provider
from jupyter_sky.providers.local import Local
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.frames import Message

ANSWER_WITHIN = 2.0
"""Seconds for the agents of a cluster to answer; who asks for a list does not want to wait."""


@dataclass(frozen=True)
class Status:
    """What a look at a cluster shows.

    Attributes
    ----------
    phase
        ``"starting"``, ``"idle"``, ``"busy"``, ``"ending"``, ``"gone"`` when an agent of it has
        ended, or ``"unreachable"`` when one does not answer; ``"elsewhere"`` when they are on
        another computer that shares this registry; ``"unknown"`` when this version does not know
        the provider.
    busy
        The ranks that run something.
    """

    phase: str
    busy: tuple[int, ...] = ()


def look(rows: Sequence[registry.Row], providers: Mapping[str, Provider]) -> list[Status]:
    """Look at clusters, all at once.

    Parameters
    ----------
    rows
        The clusters.
    providers
        The providers by their name.
    """

    async def look_at_all() -> list[Status]:
        return await asyncio.gather(*(_look(row, providers) for row in rows))

    return event_loop.wait(look_at_all())


def look_here(rows: Sequence[registry.Row]) -> dict[str, str]:
    """Return the phases of those clusters whose nodes are on this computer, by their ids."""
    here = [row for row in rows if row.provider == Local.name and not row.is_elsewhere]
    glances = look(here, {Local.name: Local()})
    return {row.id: glance.phase for row, glance in zip(here, glances, strict=True)}


async def answers(row: registry.Row, provider: Provider) -> bool:
    """Return whether any machine of a cluster is still there; removes what is left if not."""
    if row.provider != provider.name or row.is_elsewhere:
        return True
    machines = [provider.machine(machine) for machine in row.machines]
    for machine in machines:
        try:
            (await machine.open()).close()
        except AgentGone:
            continue
        except OSError:
            pass  # it may be there, behind a link that is broken
        return True
    for machine in [*machines, *map(provider.machine, row.leaving)]:
        await machine.remove()
    return False


async def _look(row: registry.Row, providers: Mapping[str, Provider]) -> Status:
    if row.provider not in providers:
        return Status("unknown")
    if row.is_starting:
        return Status("starting")
    if row.is_elsewhere:
        return Status("elsewhere")
    machines = [providers[row.provider].machine(each) for each in row.machines]
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            said = await asyncio.gather(*map(_greet, machines), return_exceptions=True)
    except TimeoutError:
        return Status("unreachable")
    gone = [each for each in said if isinstance(each, AgentGone)]
    # Others may be about to take the place of some.
    if gone and (len(gone) == len(machines) or not row.spec.get("replace")):
        return Status("gone")
    welcomes = [each for each in said if not isinstance(each, BaseException)]
    if len(welcomes) < len(machines):
        return Status("unreachable")
    if not welcomes or any(welcome["ending"] for welcome in welcomes):
        return Status("ending" if welcomes else "gone")
    ranks = [rank for welcome in welcomes for rank in welcome["ranks"]]
    busy = tuple(sorted(rank["rank"] for rank in ranks if rank["run"]))
    return Status("busy" if busy else "idle", busy)


async def _greet(machine: Machine) -> Message:
    connection = Connection(machine, lambda *event: None, lambda connection: None, visits=True)
    try:
        return await connection.open(since=None)
    finally:
        connection.close()
