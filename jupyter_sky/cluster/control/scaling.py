"""Scaling: nodes come to a cluster or leave it, and the ranks that stay keep their variables.

Ranks are never renumbered. Nodes that come get the next numbers, those with the highest leave, and
the head stays. Whoever is stopped in the middle, or fails, leaves the cluster as it was; from the
moment when it is written down in the registry it is the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control import process_group
from jupyter_sky.cluster.control.shutdown import end, remove
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.network import health
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import AddedNodes, Machine, Progress, RunningCluster, Scalable
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.events import Ending, Event
from jupyter_sky.transport.frames import Message

if TYPE_CHECKING:
    from jupyter_sky.cluster.control.controller import Controller

T = TypeVar("T")


async def scale(
    controller: Controller, nodes: int, provider: Scalable, progress: Progress
) -> list[str]:
    """Give a cluster so many nodes.

    Parameters
    ----------
    controller
        The cluster; nothing may run on it.
    nodes
        How many it shall have.
    provider
        Where those that it lacks come from.
    progress
        Told what is going on.

    Returns
    -------
    list of str
        The nodes that left and could not be reached; what is left there ends by itself.

    Raises
    ------
    SkyError
        When nodes do not come; the cluster is as it was.
    """
    if nodes < len(controller.state.nodes):
        return await _finished(_shrink(controller, nodes, provider))
    await grow(controller, replace(controller.spec, nodes=nodes), provider, progress)
    return []


async def grow(
    controller: Controller,
    spec: ClusterSpec,
    provider: Scalable,
    progress: Progress,
    lost: Sequence[Connection] = (),
) -> None:
    """Have the nodes join that a cluster lacks to be what ``spec`` says.

    Parameters
    ----------
    controller
        The cluster.
    spec
        What it shall be.
    provider
        Where the nodes come from.
    progress
        Told what is going on.
    lost
        Connections to agents that are gone, whose place others take.
    """
    there = [connection for connection in controller.connections if connection not in lost]
    running = RunningCluster(
        spec,
        controller.id,
        controller.runtime_env.preload,
        [connection.machine for connection in there],
        [node for connection in lost for node in connection.machine.nodes],
        (await there[0].request("authority"))["authority"],
    )
    growth = await provider.add_nodes(running, progress)
    joining = _Joining(controller, provider, growth, lost)
    try:
        await joining.join(progress)
        joining.settle(spec)
    except BaseException as error:
        await joining.undo()
        if isinstance(error, OSError):
            raise SkyError(f"a new node does not answer: {error}") from None
        raise joining.trouble or error from None


class _Joining:
    """Machines that are about to join a cluster.

    What goes wrong with one of them is the end of their joining, and not of the cluster.

    Attributes
    ----------
    trouble
        What went wrong with one of them.
    """

    def __init__(
        self,
        controller: Controller,
        provider: Scalable,
        growth: AddedNodes,
        lost: Sequence[Connection],
    ) -> None:
        self._controller = controller
        self._provider = provider
        self._growth = growth
        self._before = controller.state
        self._lost = list(lost)
        self._kept = [each for each in controller.connections if each not in lost]
        self._machines = [connection.machine for connection in self._kept]
        self._new = [Connection(each, self._on_event, self._on_lost) for each in growth.machines]
        self._ranks = {each.rank for each in growth.ranks}
        self._ranks.update(rank for connection in self._new for rank in connection.ranks)
        self.trouble: SkyError | None = None

    async def join(self, progress: Progress) -> None:
        """Have them, their ranks and the others form one group."""
        controller, growth = self._controller, self._growth
        registry.record_size(
            controller.id,
            controller.spec.nodes,
            self._rows(),
            [machine.row() for machine in growth.machines],
        )
        controller.rearrange([*self._with_machines(growth.existing), *self._new])
        await asyncio.gather(*(connection.open(since=0) for connection in self._new))
        await self._enlist()
        if controller.runtime_env.preload and self._new:
            progress(f"importing {', '.join(controller.runtime_env.preload)}")
        async with process_group.deadline(
            controller.timeouts.start, "the new nodes did not get ready"
        ):
            await controller.until(self._are_ready)
        self._check()
        if self._new:
            progress("checking the network")
            await self._admit()
        await health.check_ways(controller.connections)
        if controller.runtime_env.together:
            progress("forming the group")
        await controller.form()
        self._check()

    def settle(self, spec: ClusterSpec) -> None:
        """Make them part of the cluster for good."""
        controller = self._controller
        rows = [connection.machine.row() for connection in controller.connections]
        registry.record_size(controller.id, spec.nodes, rows)
        controller.spec, controller.provider = spec, self._provider
        for connection in self._new:
            controller.adopt(connection)
        controller.wake()

    async def undo(self) -> None:
        """Have the cluster as it was before."""
        controller = self._controller
        controller.rearrange([*self._with_machines(self._machines), *self._lost])
        controller.state = self._before.as_of(controller.state, but=self._ranks)
        await asyncio.gather(*map(end, self._new), _discharge(self._kept, self._ranks))
        await self._provider.release_machines(self._growth.machines)
        controller.forget(self._ranks)
        if controller.state.generation > self._before.generation and not self._lost:
            await _form_again(controller)
        registry.record_size(controller.id, controller.spec.nodes, self._rows())
        controller.wake()

    def _rows(self) -> list[dict[str, Any]]:
        """Return what the registry says of the cluster as it was."""
        lost = [connection.machine for connection in self._lost]
        return [machine.row() for machine in [*self._machines, *lost]]

    def _with_machines(self, machines: Sequence[Machine]) -> list[Connection]:
        for connection, machine in zip(self._kept, machines, strict=True):
            connection.machine = machine
        return self._kept

    async def _enlist(self) -> None:
        """Have agents that were there start further ranks."""

        async def enlist(connection: Connection) -> None:
            mine = [asdict(each) for each in self._growth.ranks if each.rank in connection.ranks]
            if mine:
                await connection.request("add_ranks", ranks=mine)

        await asyncio.gather(*map(enlist, self._kept))

    def _are_ready(self) -> bool:
        self._check()
        hosts = [node.host for connection in self._new for node in connection.machine.nodes]
        return self._controller.state.settled and self._controller.versions.keys() >= set(hosts)

    def _check(self) -> None:
        """Raise what is wrong with those that come, or that shall go on with them."""
        if self.trouble:
            raise self.trouble
        for connection in self._kept:
            if connection.is_over:
                raise SkyError(f"the agent of {connection.name} {connection.trouble}")
        controller = self._controller
        for rank in controller.state.ranks:
            if rank.rank in self._ranks and rank.phase == "dead":
                raise SkyError(f"rank {rank.rank} does not start: {rank.trouble}")
        for name, reason in controller.state.missing:
            raise SkyError(f"{name} cannot be imported on the new nodes: {reason}")
        controller.warn(version_check.check(controller.versions))

    async def _admit(self) -> None:
        """Have the agents that were there let in those that come."""
        growth, new = self._growth, self._new[0].machine.nodes[0]
        message: Message = {
            "authority": growth.authority,
            "credentials": asdict(growth.credentials) if growth.credentials else None,
            "peer": new.addr,
        }
        for connection in self._kept:
            answer = await connection.request("add_peers", **message)
            if "port" in answer:
                where = {key: answer[key] for key in ("addr", "interface", "port")}
                nodes = [replace(node, **where) for node in connection.machine.nodes]
                connection.machine = connection.machine.with_nodes(nodes)
        self._controller.rearrange(self._controller.connections)

    def _on_event(self, connection: Connection, event: Event) -> None:
        if isinstance(event, Ending):
            self._fail(connection, f"has ended itself: {event.reason}")
        else:
            self._controller.take(connection, event)

    def _on_lost(self, connection: Connection) -> None:
        self._fail(connection, connection.trouble)

    def _fail(self, connection: Connection, reason: str) -> None:
        host = connection.name
        self.trouble = self.trouble or SkyError(f"the agent of {host} {reason}")
        # Who waits for the group need not wait any longer.
        error = {"type": "ClusterLost", "text": str(self.trouble)}
        self._controller.form_errors.update(dict.fromkeys(connection.ranks, error))
        self._controller.wake()


async def _shrink(controller: Controller, nodes: int, provider: Scalable) -> list[str]:
    """Let the last nodes go; this cannot fail half-way, and is not stopped half-way either."""
    stay = {
        connection: [node for node in connection.machine.nodes if node.node < nodes]
        for connection in controller.connections
    }
    kept = [connection for connection in stay if stay[connection]]
    leaving = [connection for connection in stay if not stay[connection]]
    machines = [connection.machine.with_nodes(stay[connection]) for connection in kept]
    rows = [machine.row() for machine in machines]
    registry.record_size(controller.id, nodes, rows, [each.machine.row() for each in leaving])
    controller.spec = replace(controller.spec, nodes=nodes)
    before = set(controller.ranks)
    for connection, machine in zip(kept, machines, strict=True):
        connection.machine = machine
    controller.rearrange(kept)
    controller.forget(gone := before - set(controller.ranks))
    # All leave the former group at the same time, as what made it may want it.
    ended, _, _ = await asyncio.gather(
        asyncio.gather(*map(end, leaving)), _discharge(kept, gone), _form_again(controller)
    )
    await provider.release_machines([connection.machine for connection in leaving])
    registry.record_size(controller.id, nodes, rows)
    return [host for hosts in ended for host in hosts]


async def _form_again(controller: Controller) -> None:
    """Form the group, or else leave it to the next run, which says what is in the way."""
    with contextlib.suppress(SkyError):
        if controller.alive:
            await controller.form()


async def clear_up(
    controller: Controller, welcomes: Sequence[Message], leaving: Sequence[Machine]
) -> bool:
    """End what a kernel that was killed while it scaled the cluster has left.

    Parameters
    ----------
    controller
        The cluster as the registry has it.
    welcomes
        What its agents say of themselves.
    leaving
        Machines that should not be part of it.

    Returns
    -------
    bool
        Whether there was anything.
    """
    there = {rank["rank"] for welcome in welcomes for rank in welcome["ranks"]}
    strange = there - set(controller.ranks)
    if not strange and not leaving:
        return False
    await asyncio.gather(_discharge(controller.connections, strange), *map(remove, leaving))
    if isinstance(controller.provider, Scalable):
        await controller.provider.release_machines(leaving)
    controller.forget(strange)
    rows = [connection.machine.row() for connection in controller.connections]
    registry.record_size(controller.id, controller.spec.nodes, rows)
    return True


async def _discharge(connections: Sequence[Connection], ranks: Collection[int]) -> None:
    """End ranks of agents that go on."""
    if not ranks:
        return
    for connection in connections:
        with contextlib.suppress(SkyError):
            await connection.request("remove_ranks", ranks=sorted(ranks))


async def _finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Have something done to its end, also when nobody wants to wait for it any more."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
