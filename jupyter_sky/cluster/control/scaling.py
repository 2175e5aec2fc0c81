"""Scaling: nodes join a cluster or leave it, and the remaining ranks keep their variables.

Ranks are never renumbered. New nodes get the next numbers, those with the highest numbers leave,
and the head stays. If scaling is interrupted or fails, the cluster stays as it was; once the new
size is in the registry, the cluster has the new size.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control import process_group
from jupyter_sky.cluster.control.attention import kept_up
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import describe_loss
from jupyter_sky.cluster.control.shutdown import end, origin
from jupyter_sky.cluster.inventory import owed_ends, registry, turns
from jupyter_sky.cluster.inventory.joining_cost import JoiningCost
from jupyter_sky.cluster.network import health
from jupyter_sky.cluster.network.connection import Connection, ConnectionListener
from jupyter_sky.cluster.network.first_link import open_link
from jupyter_sky.cluster.network.incoming import Report
from jupyter_sky.cluster.packages.added import all_added
from jupyter_sky.cluster.packages.install import install
from jupyter_sky.cluster.runtime_env import deadline
from jupyter_sky.cluster.state import RankPhase
from jupyter_sky.cluster.volumes.mount import mount
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.base import Machine, Progress, Provider
from jupyter_sky.providers.scaling import AddedNodes, Limited, RunningCluster, Scalable
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.error_report import report
from jupyter_sky.transport.protocol.events import Ending, Event, RankDone
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.tasks import blocking, uninterrupted

_ADDRESS = ("addr", "interface", "port", "fingerprint")
"""What an agent that was alone says of itself when it gets peers."""


async def scale(
    controller: Controller, nodes: int, provider: Scalable, progress: Progress
) -> list[str]:
    """Change the number of nodes.

    Parameters
    ----------
    controller
        The cluster; nothing may run on it.
    nodes
        The new number.
    provider
        Where new nodes come from.
    progress
        Called with the present step, in words.

    Returns
    -------
    list of str
        The nodes that left and could not be told; they will be told when they answer again.

    Raises
    ------
    SkyError
        If nodes do not start; the cluster is then as it was.
    """
    async with turns.turn(controller.id):
        if controller.formation.outdated:
            raise SkyError("another notebook has changed its nodes meanwhile: try again.")
        if nodes < len(controller.state.nodes):
            return await uninterrupted(_shrink(controller, nodes, provider, progress))
        await grow(controller, replace(controller.spec, nodes=nodes), provider, progress)
        return []


async def grow(
    controller: Controller,
    spec: ClusterSpec,
    provider: Scalable,
    progress: Progress,
    lost: Sequence[Connection] = (),
) -> None:
    """Add nodes until the cluster matches ``spec``, in this process's `turns.turn`.

    Parameters
    ----------
    controller
        The cluster.
    spec
        The target specification.
    provider
        Where the nodes come from.
    progress
        Called with the present step, in words.
    lost
        Connections to agents that are gone and are to be replaced.
    """
    await owed_ends.settle_cluster(controller.id)
    there = [connection for connection in controller.connections if connection not in lost]
    running = RunningCluster(
        spec,
        controller.id,
        controller.runtime_env.imports,
        [connection.machine for connection in there],
        [node for connection in lost for node in connection.machine.nodes],
        (await there[0].request("authority"))["authority"],
    )
    async with JoiningCost(running, controller.cost, progress) as joining, kept_up(controller):
        growth = await joining.add_nodes(provider)
        expansion = _Expansion(controller, provider, growth, lost)
        try:
            await expansion.join(progress)
            await expansion.commit(spec.nodes)
        except BaseException as error:
            trouble = expansion.trouble  # of the new nodes, before they are ended
            await uninterrupted(expansion.roll_back())
            if isinstance(error, OSError):
                raise SkyError(f"a new node does not answer: {error}") from None
            raise trouble or error from None


class _Expansion(ConnectionListener):
    """Machines that are about to join a cluster; their connections report to this object.

    Until `commit`, a failure of one of them ends the expansion but not the cluster. Afterwards,
    everything is passed on to the controller.
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
        context = controller.context
        self._new = [Connection(each, self, context=context) for each in growth.machines]
        self._ranks = {each.rank for each in growth.ranks}
        self._ranks.update(rank for connection in self._new for rank in connection.ranks)
        self._committed = False
        self.trouble: SkyError | None = None

    async def join(self, progress: Progress) -> None:
        """Connect to the new machines, start their ranks, and form one group with the others."""
        controller, growth = self._controller, self._growth
        former, rows = self._former_rows(), [machine.row() for machine in growth.machines]
        await blocking(registry.record_size, controller.id, controller.spec.nodes, former, rows)
        controller.forget_ranks(self._ranks)  # they begin empty, also where a number was in use
        controller.set_connections([*self._with_machines(growth.existing), *self._new])
        await asyncio.gather(*(open_link(connection, 0) for connection in self._new))
        await self._start_ranks()
        if controller.runtime_env.preload and self._new:
            progress(f"importing {', '.join(controller.runtime_env.preload)}")
        async with deadline(controller.timeouts.start, "the new nodes did not get ready"):
            await controller.until(self._are_ready)
        self._check()
        added = await blocking(all_added, controller.id, controller.runtime_env.added)
        if self._new and added:
            progress(f"installing {format_count(len(added), 'package')}")
            await install(self._new, added, controller.spec.image, progress)
            self._check()
        if self._new and (volumes := controller.spec.volumes):
            progress("preparing volumes")
            await mount(self._new, volumes, self._provider, controller.warn)
        if self._new:
            progress("checking the network")
            await self._introduce()
        await health.check_network(controller.connections, self._provider)
        if controller.runtime_env.together:
            progress("forming the group")
        await process_group.form(controller)
        self._check()

    async def commit(self, nodes: int) -> None:
        """Make the new machines part of the cluster, which has so many nodes, for good."""
        controller = self._controller
        rows = [connection.machine.row() for connection in controller.connections]
        await blocking(registry.record_size, controller.id, nodes, rows)
        controller.spec, controller.provider = replace(controller.spec, nodes=nodes), self._provider
        self._committed = True
        controller.wake()

    async def roll_back(self) -> None:
        """Restore the previous state of the cluster, and end the new machines."""
        controller = self._controller
        controller.set_connections([*self._with_machines(self._machines), *self._lost])
        controller.state = self._before.restored(controller.state, but=self._ranks)
        await asyncio.gather(end(controller, self._new), _end_ranks(self._kept, self._ranks))
        try:
            await _release(controller, self._provider, self._growth.machines)
        finally:
            controller.forget_ranks(self._ranks)
            if controller.state.generation > self._before.generation and not self._lost:
                await _form_again(controller)
        controller.wake()

    def _former_rows(self) -> list[dict[str, Any]]:
        """Return the registry's data about the previous state of the cluster."""
        return [each.row() for each in [*self._machines, *(one.machine for one in self._lost)]]

    def _with_machines(self, machines: Sequence[Machine]) -> list[Connection]:
        for connection, machine in zip(self._kept, machines, strict=True):
            connection.machine = machine
        return self._kept

    async def _start_ranks(self) -> None:
        """Ask existing agents to start further ranks."""

        async def start(connection: Connection) -> None:
            ranks = [asdict(each) for each in self._growth.ranks if each.rank in connection.ranks]
            if ranks:
                await connection.request("add_ranks", ranks=ranks)

        await asyncio.gather(*map(start, self._kept))

    def _are_ready(self) -> bool:
        self._check()
        hosts = [node.host for connection in self._new for node in connection.machine.nodes]
        return self._controller.state.settled and self._controller.versions.keys() >= set(hosts)

    def _check(self) -> None:
        """Raise an error of the new machines, or of the existing ones."""
        if self.trouble:
            raise self.trouble.anew()
        for connection in self._kept:
            if connection.is_over:
                raise connection.loss.anew()
        controller = self._controller
        for rank in controller.state.ranks:
            if rank.rank in self._ranks and rank.phase is RankPhase.DEAD:
                raise SkyError(f"rank {rank.rank} does not start: {rank.trouble}")
        for name, reason in controller.state.missing:
            raise SkyError(f"{name} cannot be imported on the new nodes: {reason}")
        controller.warn(version_check.check(controller.versions))

    async def _introduce(self) -> None:
        """Tell existing agents to trust those of the new machines."""
        growth, new = self._growth, self._new[0].machine.nodes[0]
        message: Message = {
            "authority": growth.authority,
            "credentials": asdict(growth.credentials) if growth.credentials else None,
            "peer": new.addr,
            "peers": [each.machine.nodes[0].fingerprint for each in self._new],
        }
        for connection in self._kept:
            answer = await connection.request("add_peers", **message)
            if answer.keys() >= {*_ADDRESS}:
                where = {key: answer[key] for key in _ADDRESS}
                nodes = [replace(node, **where) for node in connection.machine.nodes]
                connection.machine = connection.machine.with_nodes(nodes)
        self._controller.set_connections(self._controller.connections)

    # Reports of the new machines' connections

    def on_event(self, connection: Connection, event: Event) -> None:
        """Pass an event on, unless it is the end of an agent that has not joined yet."""
        if isinstance(event, Ending) and not self._committed:
            self._fail(connection, f"has ended itself: {event.reason}")
        else:
            self._controller.on_event(connection, event)

    def on_ranks_done(self, connection: Connection, events: Sequence[RankDone]) -> None:
        """Pass it on."""
        self._controller.on_ranks_done(connection, events)

    def on_report(self, connection: Connection, report: Report) -> None:
        """Pass it on."""
        self._controller.on_report(connection, report)

    def on_foreign_ranks(self, connection: Connection, ranks: frozenset[int]) -> None:
        """Pass it on."""
        self._controller.on_foreign_ranks(connection, ranks)

    def on_malformed(self, connection: Connection, what: str) -> None:
        """Pass it on, unless the agent has not joined yet."""
        if self._committed:
            self._controller.on_malformed(connection, what)
        else:
            self._fail(connection, f"sent what cannot be read ({what})")

    def on_link_changed(self, connection: Connection) -> None:
        """Pass it on."""
        self._controller.on_link_changed(connection)

    def on_agent_lost(self, connection: Connection) -> ClusterLost:
        """Pass it on, unless the agent has not joined yet."""
        if self._committed:
            return self._controller.on_agent_lost(connection)
        self._fail(connection, connection.trouble)
        return ClusterLost(str(self.trouble))

    def _fail(self, connection: Connection, reason: str) -> None:
        self.trouble = self.trouble or SkyError(describe_loss(connection, reason))
        # Wake the task that waits for the group.
        error = report(ClusterLost, str(self.trouble))
        self._controller.formation.errors.update(dict.fromkeys(connection.ranks, error))
        self._controller.wake()


async def _shrink(
    controller: Controller, nodes: int, provider: Scalable, progress: Progress
) -> list[str]:
    """End the last nodes; this can neither fail nor be stopped half-way."""
    stay = {
        connection: [node for node in connection.machine.nodes if node.node < nodes]
        for connection in controller.connections
    }
    kept = [connection for connection in stay if stay[connection]]
    leaving = [connection for connection in stay if not stay[connection]]
    machines = [connection.machine.with_nodes(stay[connection]) for connection in kept]
    ended = [connection.machine for connection in leaving]
    rows = [[machine.row() for machine in each] for each in (machines, ended)]
    await blocking(registry.record_size, controller.id, nodes, *rows)
    controller.spec = replace(controller.spec, nodes=nodes)
    before = set(controller.ranks)
    for connection, machine in zip(kept, machines, strict=True):
        connection.machine = machine
    controller.set_connections(kept)
    controller.forget_ranks(gone := before - set(controller.ranks))
    # All leave the previous group at the same time, as its plugin may require.
    untold, _, _ = await asyncio.gather(
        end(controller, leaving, (), progress), _end_ranks(kept, gone), _form_again(controller)
    )
    await _release(controller, provider, ended)
    return untold


async def _release(
    controller: Controller, provider: Provider, gone: Sequence[Machine], is_own: bool = True
) -> None:
    """Release machines, record those that stay, and let these spend what is left."""
    if isinstance(provider, Scalable):
        await provider.release_machines(gone)
    staying = [connection.machine for connection in controller.connections]
    record, rows = registry.record_size, [machine.row() for machine in staying]
    is_first = await blocking(record, controller.id, controller.spec.nodes, rows)
    # After a kernel that was killed, two may come here. Nodes in lost ones' places got no share.
    kept = {node.node for node in controller.state.nodes}
    gone = [each for each in gone if kept.isdisjoint(node.node for node in each.nodes)]
    if (is_own or is_first) and gone and isinstance(provider, Limited):
        await provider.share_rest(staying, gone)


async def _form_again(controller: Controller) -> None:
    """Form the group; if that fails, the next run tries again and reports the error."""
    with contextlib.suppress(SkyError):
        if controller.alive:
            await process_group.form(controller)


async def finish_interrupted(
    controller: Controller, welcomes: Sequence[Welcome], leaving: Sequence[Machine]
) -> None:
    """Clean up after a kernel that was killed while scaling the cluster.

    Parameters
    ----------
    controller
        The cluster, as recorded in the registry.
    welcomes
        The welcome messages of its agents.
    leaving
        Machines that should not belong to it.
    """
    there = {rank["rank"] for welcome in welcomes for rank in welcome["ranks"]}
    surplus = there - set(controller.ranks)
    if not surplus and not leaving:
        return
    await asyncio.gather(
        _end_ranks(controller.connections, surplus),
        owed_ends.remove_machines(origin(controller), leaving),
    )
    controller.forget_ranks(surplus)
    await _release(controller, controller.provider, leaving, is_own=False)


async def _end_ranks(connections: Sequence[Connection], ranks: Collection[int]) -> None:
    """End ranks of agents that continue."""
    if not ranks:
        return
    for connection in connections:
        with contextlib.suppress(SkyError):
            await connection.request("remove_ranks", ranks=sorted(ranks))
