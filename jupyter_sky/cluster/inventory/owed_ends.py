"""Machines that could not be told that their cluster, or their part of it, was ended.

They are in the registry until they are told: any kernel that uses clusters tries again in the
background, and `gc` does so at once. A machine that nobody reaches ends by itself when its time
without a notebook is over; nothing is owed to it after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.machines import machine_of
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.formatting import format_duration
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Machine, Provider
from jupyter_sky.providers.cloud import CloudProvider
from jupyter_sky.providers.spec import UNATTENDED
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.shape import check_for
from jupyter_sky.transport.tasks import blocking

REMOVE_WITHIN = 10.0
"""Seconds for one attempt to reach a machine."""

_PAUSES = (2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Seconds between attempts in the background; the last is for all that follow."""


@dataclass(frozen=True)
class Origin:
    """The cluster that a machine was part of.

    Attributes
    ----------
    id, name
        The cluster's id, and its name.
    provider
        Where its nodes came from.
    unattended
        Seconds without a notebook after which its nodes end by themselves.
    """

    id: str
    name: str
    provider: Provider
    unattended: float = UNATTENDED

    @classmethod
    def of_row(cls, row: RegistryRow, provider: Provider) -> Origin:
        """Return what the registry says of it."""
        return cls(row.id, row.name, provider, row.spec.get("unattended", UNATTENDED))


@dataclass(frozen=True)
class OwedEnd:
    """A machine that is to be told.

    Attributes
    ----------
    number
        Which row of the table it is.
    cluster, name, provider
        The cluster's id, its name, and where its nodes came from.
    machine
        The machine, as `Machine.row` describes it.
    since
        When it should have been told, in seconds since the epoch.
    """

    number: int
    cluster: str
    name: str
    provider: str
    machine: Mapping[str, Any]
    since: float

    @property
    def hosts(self) -> str:
        """What the user calls the machine."""
        names = [node.get("name") or node["addr"] for node in self.machine["nodes"]]
        return ", ".join(map(str, names))

    def __str__(self) -> str:
        ago = format_duration(time.time() - self.since)
        # The cluster may be up, as where another node has taken its place.
        what = f"{self.name}: its node was ended {ago} ago"
        return f"{what}, but {self.hosts} could not be reached so far"


def sentence(hosts: Sequence[str], unattended: float) -> str:
    """Return what becomes of hosts that could not be told that something was ended.

    Parameters
    ----------
    hosts
        The hosts.
    unattended
        Seconds without a notebook after which their nodes end by themselves.
    """
    it = "they answer" if len(hosts) > 1 else "it answers"
    return (
        f"{', '.join(hosts)} could not be reached: what is left there is ended when {it} again, by "
        f"any notebook that uses a cluster or by `%sky gc`, and by itself within "
        f"{format_duration(unattended)} without a notebook"
    )


def sentence_of_end(name: str, untold: Sequence[str], unattended: float | None) -> str:
    """Return a sentence that a cluster has ended, and what is left of it; see `sentence`."""
    if not untold:
        return f"{name}: ended; nothing is left running"
    return f"{name}: ended, but {sentence(untold, unattended or UNATTENDED)}"


# Machines that are to be told


async def remove_machines(origin: Origin, machines: Sequence[Machine]) -> list[str]:
    """Remove what is left of agents on machines.

    Returns
    -------
    list of str
        The nodes that could not be reached, which is owed to them from now on.
    """
    removed = await asyncio.gather(*map(try_to_remove, machines))
    left = [machine for machine, done in zip(machines, removed, strict=True) if not done]
    await record(origin, left)
    return [node.host for machine in left for node in machine.nodes]


async def try_to_remove(machine: Machine) -> bool:
    """Remove what is left of an agent on a machine; say whether the machine was reached."""
    try:
        async with asyncio.timeout(REMOVE_WITHIN):
            await machine.remove()
    except (OSError, TimeoutError):
        return False
    return True


async def record(origin: Origin, machines: Sequence[Machine]) -> None:
    """Record machines that could not be told, and have them told in the background.

    Machines of a cloud are terminated by their provider, whatever is on them.
    """
    if isinstance(origin.provider, CloudProvider) or not machines:
        return
    now = time.time()
    about = (origin.id, origin.name, origin.provider.name)
    rows = [(*about, json.dumps(each.row()), now, now + origin.unattended) for each in machines]
    await blocking(_insert, rows)
    _start()


def _insert(rows: Sequence[tuple[Any, ...]]) -> None:
    with registry.opened() as database:
        database.executemany(
            "INSERT INTO owed_ends (cluster, name, provider, machine, since, until) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )


def read() -> list[OwedEnd]:
    """Return all ends that are owed, oldest first."""
    with registry.opened() as database:
        database.execute("DELETE FROM owed_ends WHERE until < ?", (time.time(),))
        found = database.execute(
            "SELECT number, cluster, name, provider, machine, since FROM owed_ends ORDER BY number"
        ).fetchall()
    return [owed for each in found if (owed := _parse(*each))]


def hosts_of(identity: str) -> list[str]:
    """Return the hosts on which an end is owed to a cluster."""
    return [owed.hosts for owed in read() if owed.cluster == identity]


class _Node(TypedDict):
    addr: str


class _Machine(TypedDict):
    nodes: list[_Node]


def _parse(
    number: int, cluster: str, name: str, provider: str, machine: str, since: float
) -> OwedEnd | None:
    """Return a row of the table; ``None`` for one that another version understands, or nobody."""
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        described = json.loads(machine)
        if check_for(_Machine)(described) and check_for(float)(since):
            return OwedEnd(number, cluster, name, provider, described, since)
    return None


# Telling them


async def settle(owed: OwedEnd) -> bool:
    """Try to end what is left on a machine; say whether nothing is owed there any more."""
    provider = providers().get(owed.provider)
    if provider is None or not (machine := machine_of(owed.machine, provider)):
        return False  # another version knows how to reach it
    if not await try_to_remove(machine):
        return False
    await blocking(_delete, owed.number)
    return True


def _delete(number: int) -> None:
    with registry.opened() as database:
        database.execute("DELETE FROM owed_ends WHERE number = ?", (number,))


async def settle_cluster(identity: str) -> None:
    """Try to end what is owed to a cluster, before it gets other nodes in the same places."""
    owed = await blocking(read)
    await asyncio.gather(*(settle(each) for each in owed if each.cluster == identity))


def settle_now() -> list[tuple[OwedEnd, bool]]:
    """Try to end whatever is owed, all at once; say of each whether it was done."""
    owed = read()

    async def settle_all() -> list[bool]:
        return await asyncio.gather(*map(settle, owed))

    return list(zip(owed, event_loop.wait(settle_all()), strict=True))


def settle_in_background() -> None:
    """Have the background loop try until nothing is owed any more; cheap where nothing is."""
    with contextlib.suppress(registry.RegistryError):  # the next kernel tries as well
        if read():
            event_loop.call(_start)


_task: asyncio.Task[None] | None = None


def _start() -> None:
    global _task
    if _task is None or _task.done():
        _task = asyncio.get_running_loop().create_task(_settle_until_done())


async def _settle_until_done() -> None:
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        await asyncio.sleep(pause)
        with contextlib.suppress(registry.RegistryError):  # another process may hold the registry
            if not (owed := await blocking(read)):
                return
            await asyncio.gather(*map(settle, owed))
