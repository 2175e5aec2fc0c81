"""The controller of a cluster: its connections, its state, and the events that change it.

All of it runs in the background loop. Operations on a cluster are functions of a controller, in the
files beside this one: `lifecycle`, `process_group`, `scaling`, `recovery`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control.listener import ClusterListener, Done, describe_loss
from jupyter_sky.cluster.control.preemption import PreemptionMonitor
from jupyter_sky.cluster.cost_meter import ClusterCost
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.metrics.usage import Usage
from jupyter_sky.cluster.namespace.sync import NamespaceSync
from jupyter_sky.cluster.network.connection import Connection, ConnectionListener
from jupyter_sky.cluster.network.connection_context import ConnectionContext
from jupyter_sky.cluster.network.first_link import open_links
from jupyter_sky.cluster.network.health import LinkMonitor
from jupyter_sky.cluster.network.incoming import Report
from jupyter_sky.cluster.network.node_faults import NodeFaults
from jupyter_sky.cluster.network.pages import Pages
from jupyter_sky.cluster.network.requests.events import what_was_lost
from jupyter_sky.cluster.runtime_env import ClusterConfig
from jupyter_sky.cluster.state import (
    ClusterPhase,
    ClusterState,
    Formation,
    RankPhase,
    ranks_done,
    reduce,
)
from jupyter_sky.cluster.work import Work
from jupyter_sky.errors import RUN_AGAIN, ClusterLost, SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.providers.base import AgentGone, Machine, counts_hours
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.error_report import report
from jupyter_sky.transport.protocol.events import (
    Added,
    Ending,
    Event,
    Formed,
    Leaving,
    Lost,
    Prepared,
    RankDone,
    RankExited,
    RankStarted,
)
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.tasks import BackgroundTasks, Changes, Coalescer

_LEFT_WITHIN = 1.0  # most seconds that the user waits for tasks to end
_SETTLED_WITHIN = 1.0  # seconds for the end of another kernel's run to become known here


class Controller(ConnectionListener):
    """The connections and the state of a cluster.

    Parameters
    ----------
    config
        The initial knowledge about the cluster; attributes of the same names may change later.
    listener
        Notified of everything that happens to the cluster.

    Attributes
    ----------
    shared
        Whether another notebook was already connected, and takes care of the group.
    has_company
        Whether another notebook was connected then, or has attached or run something since.
    state
        The present state; replaced at each event.
    warnings
        Sentences for the user about the nodes and their versions.
    untold
        Sentences for the user that the next run shows.
    reports
        The latest resource usage of each rank.
    versions
        The versions on each node, by host, as far as reported.
    activity
        The present operation, in words; empty if there is none.
    launch, repair
        The tasks that start its machines, and that replace lost nodes.
    preemptions
        Its nodes that are about to be taken away.
    loss
        Why the cluster is lost, once it is.
    formation
        How its group was formed last.
    observers
        Called, without arguments, after every change.
    context
        What its connections share.
    pages, work
        Pages of its nodes for the browser; work on nodes outside runs.
    """

    def __init__(self, config: ClusterConfig, listener: ClusterListener) -> None:
        self.spec = config.spec
        self.id = config.id
        self.provider = config.provider
        self.runtime_env = config.runtime_env
        self.timeouts = config.timeouts
        self.visits = config.visits
        self.place = config.place
        self.cost = ClusterCost(config.meter, counts_hours(config.provider))
        self.listener = listener
        self.shared = self.has_company = False
        self.context = ConnectionContext()
        self.sync = NamespaceSync()
        self.state = ClusterState.new([])
        self.connections: list[Connection] = []
        self.usage = Usage()
        self.warnings: tuple[str, ...] = ()
        self.untold: list[str] = []
        self.versions: dict[str, version_check.Versions] = {}
        self.activity = ""
        self.launch: asyncio.Task[list[Machine]] | None = None
        self.repair: asyncio.Task[None] | None = None
        self.loss = ClusterLost(f"cluster {self.spec.name} is gone.")
        self.loss_is_told = False
        self.formation = Formation()
        self.observers: list[Callable[[], None]] = []
        self.pages = Pages(self.id, self.connection, lambda: event_loop.call(self.wake))
        self.work = Work(lambda: event_loop.call(self.wake))
        self._links = LinkMonitor(self.spawn, self.notify, self._on_unreached)
        self._faults = NodeFaults(self.notify)
        cloud = getattr(config.provider, "cloud", "its provider")
        self.preemptions = PreemptionMonitor(self.spawn, self.notify, self.wake, cloud)
        self._changes = Changes(self.observers)
        self._done: Coalescer[Done] = Coalescer(self._on_ranks_done)
        self._tasks = BackgroundTasks()

    # State

    @property
    def alive(self) -> bool:
        """Whether the cluster can be used, as far as is known."""
        return self.state.phase is ClusterPhase.READY

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank, in order."""
        return self.state.numbers

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the cluster by this kernel."""
        return self.context.traffic.sent

    @property
    def note(self) -> str:
        """The present operation, and problems of links and nodes; empty if there are none."""
        notes = (self.activity, self._links.note, self.preemptions.note, self._faults.note)
        return "; ".join(filter(None, notes))

    @property
    def unreached(self) -> list[Connection]:
        """The connections to nodes that neither this process nor other nodes can reach."""
        return self._links.unreached

    @property
    def link_note(self) -> str:
        """Problems of its links, in words; empty if there are none."""
        return self._links.note

    def connection(self, rank: int) -> Connection:
        """Return the connection to the agent of a rank."""
        for connection in self.connections:
            if rank in connection.ranks:
                return connection
        raise SkyError(
            f"cluster {self.spec.name} has no rank {rank}: it has {format_ranks(self.ranks)}."
        )

    def host(self, rank: int) -> str:
        """Return the user's name for the node of a rank."""
        return self.state.node_of(rank).host

    def is_idle(self, rank: int) -> bool:
        """Return whether a rank is alive and idle."""
        return any(r.rank == rank and r.phase is RankPhase.IDLE for r in self.state.ranks)

    # Machines

    async def connect(
        self, machines: Sequence[Machine], since: int | None
    ) -> tuple[dict[Connection, Welcome], dict[Connection, AgentGone]]:
        """Connect to these machines; return the agents' welcome messages, and the agents gone.

        Parameters
        ----------
        machines
            All machines of the cluster.
        since
            Number of the last known event; ``None`` to request events later.

        Raises
        ------
        OSError, SkyError
            If one of them cannot be reached, or has another version of jupyter_sky.
        """
        context = self.context
        self.set_connections([Connection(each, self, self.visits, context) for each in machines])
        welcomes, gone = await open_links(self.connections, since)
        for welcome in welcomes.values():
            version_check.check_agent(welcome)
        return welcomes, gone

    def set_connections(self, connections: Sequence[Connection]) -> None:
        """Set the connections of the cluster, and with them its nodes and ranks."""
        self.connections = list(connections)
        machines = [connection.machine for connection in connections]
        nodes = [node for machine in machines for node in machine.nodes]
        self.state = self.state.with_nodes(sorted(nodes, key=lambda node: node.node))
        self.cost.set_nodes([node.message() for node in nodes])
        hosts = {node.host for node in nodes}
        self.versions = {host: self.versions[host] for host in hosts & self.versions.keys()}
        self.sync.shares_files = all(machine.shares_files for machine in machines)
        self._links.watch(connections)
        self.wake()

    def forget_ranks(self, ranks: Iterable[int]) -> None:
        """Forget ranks that are gone."""
        for rank in ranks:
            self.sync.forget(rank)
            self.usage.forget(rank)

    def close(self) -> None:
        """Close the connections to the agents, which continue."""
        self.pages.close()
        for connection in self.connections:
            connection.close()

    async def leave(self) -> None:
        """Close the connections, and end this process's tasks for the cluster."""
        self.close()
        await self._tasks.cancel(_LEFT_WITHIN)

    # Events

    def on_event(self, connection: Connection, event: Event) -> None:
        """Update the state by an event of a node, and notify the listener."""
        if isinstance(event, RankDone):
            # Of a thousand ranks, most end at the same time and without error.
            self._done.add((connection, event))
            if event.outcome == "ok":
                return
        self._done.flush()
        if isinstance(event, RankDone):
            return
        if connection.is_repeating and isinstance(event, RankStarted | RankExited | Formed):
            # The state is newer: it is what the agent has told of its ranks' processes since then.
            self.listener.on_event(connection, event)
            return
        self.state = reduce(self.state, event, connection.ranks)
        match event:
            case Formed(generation=generation) if generation > self.state.generation:
                # Formed by another kernel: of the same ranks, or has it changed them?
                if event.members == self.state.members(self.runtime_env.plugins):
                    self.state = replace(self.state, generation=generation)
                else:
                    self.formation.outdated = True
            case Formed(rank, generation, error) if error is not None:
                # One that was taken out of an earlier group so late does not spoil this one.
                if generation == self.state.generation:
                    self.formation.errors[rank] = error
            case Added(by=by) if by != self.context.client and not connection.is_repeating:
                self.has_company = self.formation.has_additions = True
            case Prepared(versions=versions):
                self.versions.update((node.host, versions) for node in connection.machine.nodes)
            case Leaving():
                self.preemptions.on_leaving(connection, event)
            case Lost(shown=shown, others=others):
                self.formation.outdated |= others > 0
                self.notify(what_was_lost(connection.name, shown))
            case Ending(whole=False):  # another notebook has removed the node, or this one
                self.formation.outdated |= connection in self.connections
            case Ending(reason=""):
                if self.state.phase is not ClusterPhase.DOWN:
                    self.mark_lost(f"cluster {self.spec.name} was ended from elsewhere.")
            case Ending(reason=reason):
                name, stops = self.spec.name, self.spec.autostop
                then = f"`%sky start {name}` starts it again." if stops else f"{RUN_AGAIN}."
                done = "stopped" if stops else "ended"
                self.mark_lost(f"cluster {name} has {done} itself: {reason}.", then)
            case RankExited(rank=rank, reason=reason):
                self.sync.forget(rank)
                if self.formation.lock.locked():
                    self.formation.errors[rank] = report(RankLost, reason)
        self.listener.on_event(connection, event)
        self.wake()

    def on_ranks_done(self, connection: Connection, events: Sequence[RankDone]) -> None:
        """Update the state and notify the listener, once for all that arrived together."""
        for event in events:
            self._done.add((connection, event))

    def _on_ranks_done(self, done: Sequence[Done]) -> None:
        self.state = ranks_done(self.state, (event for _, event in done))
        self.listener.on_ranks_done(done)
        self.wake()

    def on_report(self, connection: Connection, report: Report) -> None:
        """Keep the usage of a node's ranks; earlier minutes are kept for those who ask."""
        if self.usage.add(connection.machine.nodes, report):
            self.wake()

    def on_foreign_ranks(self, connection: Connection, ranks: frozenset[int]) -> None:
        """Report a node that spoke for others' ranks, unless these are removed ranks."""
        if others := ranks.intersection(self.ranks):
            self._faults.report_foreign(connection.name, others)

    def on_malformed(self, connection: Connection, what: str) -> None:
        """Report that a node sent a malformed message; the listener handles its runs."""
        self._done.flush()
        self._faults.report_malformed(connection.name, what)
        self.listener.on_malformed(connection, what)

    def on_link_changed(self, connection: Connection) -> None:
        """Watch a broken link, or report that there is a new one."""
        self._links.on_link_changed(connection)
        self.wake()

    def _on_unreached(self, connection: Connection, seconds: float) -> None:
        if self.state.phase not in (ClusterPhase.LOST, ClusterPhase.DOWN):
            self.listener.on_unreached(connection, seconds)

    def on_agent_lost(self, connection: Connection) -> ClusterLost:
        """Let the listener decide about a cluster that has lost an agent."""
        self._done.flush()
        is_over = self.state.phase in (ClusterPhase.LOST, ClusterPhase.DOWN)
        if connection in self.connections and not is_over:
            self.listener.on_agent_lost(connection)
        if self.state.phase is ClusterPhase.LOST:
            return self.loss
        return ClusterLost(describe_loss(connection))

    def mark_lost(
        self, reason: str, then: str = f"{RUN_AGAIN}.", nodes: Iterable[str] = ()
    ) -> None:
        """Mark the cluster as lost, tell the listener why, and add no nodes to it any more."""
        self.state = replace(self.state, phase=ClusterPhase.LOST)
        self.loss = ClusterLost(reason, nodes, then)
        self._links.end(reason)
        self.loss_is_told = self.listener.on_end(self.loss)
        if self.repair:
            self.repair.cancel()
        self.wake()

    def notify(self, text: str) -> None:
        """Pass a notice for the user about links and nodes to the listener."""
        self.listener.on_notice(text)
        self.wake()

    def warn(self, sentences: Iterable[str]) -> None:
        """Add a warning that is not there yet."""
        self.warnings += tuple(each for each in sentences if each not in self.warnings)

    # Waiting

    def wake(self) -> None:
        """Wake every task waiting in `until`, and call the observers."""
        self._changes.tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; it is checked after each change.

        Raises
        ------
        ClusterLost
            If it can no longer become true: the cluster is lost or ended, or a rank is dead.
        """
        while not condition():
            if self.state.phase in (ClusterPhase.LOST, ClusterPhase.DOWN):
                raise self.loss.anew()
            if dead := [rank for rank in self.state.ranks if rank.phase is RankPhase.DEAD]:
                raise ClusterLost(self.state.about_dead(dead[0], self.spec.name))
            await self._changes.next()

    async def holds_soon(self, condition: Callable[[], bool]) -> bool:
        """Wait a moment for a condition; return whether it is true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLED_WITHIN):
                await self.until(condition)
        return condition()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        self._tasks.spawn(coroutine)
