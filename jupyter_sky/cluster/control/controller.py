"""What goes on behind a cluster: its agents, its ranks, their group. All in the background loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control import attach, process_group, recovery
from jupyter_sky.cluster.control.preemption import Departures
from jupyter_sky.cluster.control.shutdown import end, remove
from jupyter_sky.cluster.cost_meter import CostMeter
from jupyter_sky.cluster.inventory import probe, registry
from jupyter_sky.cluster.namespace.sync import NamespaceSync
from jupyter_sky.cluster.network import health
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runtime_env import RuntimeEnv, Timeouts
from jupyter_sky.cluster.state import ClusterState, reduce
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.providers.base import CloudProvider, Machine, Node, Progress, Provider
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.events import (
    Ending,
    Event,
    Formed,
    Leaving,
    Prepared,
    RankExited,
    RunBegan,
)
from jupyter_sky.transport.frames import Message


class Controller:
    """Brings a cluster up, keeps its ranks in one group, and ends it.

    Attributes
    ----------
    visits
        Whether this is no notebook's: it keeps nothing up and leaves the ranks' group alone.
    shared
        Whether a notebook was connected to it already, which looks after the group.
    state
        What is known; replaced at each event.
    warnings
        What the person should know of the nodes and their versions.
    reports
        What each rank used last.
    versions
        What is installed on each node, by its host, as far as it has said so.
    doing
        What is being done to the cluster, in words.
    outdated
        Whether another kernel has formed a group of it: ranks may have come and gone.
    repair
        The task that replaces nodes which were lost.
    loss
        Why the cluster cannot be used, once it cannot.
    forming
        Held while a group is formed.
    form_errors
        What keeps ranks from joining it.
    on_event
        Called with the connection it came from and each event, after the state has changed.
    on_notice
        Called with what the person should know of the links to its nodes.
    on_take_up
        Called with a run that another kernel began, before its events come.
    on_loss
        Called when nodes are lost, and others shall take their place.
    on_end
        Called with the reason when the cluster is lost or was ended.
    place
        Where its machines are rented, if they are.
    meter
        What it had cost when its price changed last.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        identity: str,
        provider: Provider,
        runtime_env: RuntimeEnv,
        timeouts: Timeouts,
        visits: bool = False,
    ) -> None:
        self.spec = spec
        self.id = identity
        self.provider = provider
        self.runtime_env = runtime_env
        self.timeouts = timeouts
        self.visits = visits
        self.shared = False
        self.sync = NamespaceSync()
        self.state = ClusterState.new([])
        self.connections: list[Connection] = []
        self.reports: dict[int, dict[str, Any]] = {}
        self.warnings: tuple[str, ...] = ()
        self.doing = ""
        self.outdated = False
        self.loss = ClusterLost(f"cluster {spec.name} is gone.")
        self.listeners: list[Callable[[], None]] = []
        self.on_event: Callable[[Connection, Event], None] = lambda connection, event: None
        self.on_take_up: Callable[[RunBegan], None] = lambda began: None
        self.on_notice: Callable[[str], None] = lambda text: None
        self.on_loss: Callable[[], None] = lambda: None
        self.on_end: Callable[[SkyError], None] = lambda trouble: None
        self._links = health.Links(self.spawn, self._on_notice)
        self._departures = Departures(self.spawn, self._on_notice, self.wake)
        self._changed = asyncio.Event()
        self.forming = asyncio.Lock()
        self.form_errors: dict[int, dict[str, Any]] = {}
        self.versions: dict[str, version_check.Versions] = {}
        self.place: str | None = None
        self.meter = CostMeter(0.0, time.time())
        self.repair: asyncio.Task[None] | None = None
        self._launch: asyncio.Task[list[Machine]] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def alive(self) -> bool:
        """Whether the cluster can be used, as far as is known."""
        return self.state.phase == "ready"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank, in order."""
        return tuple(rank.rank for rank in self.state.ranks)

    @property
    def price(self) -> float | None:
        """Dollars an hour; ``None`` if it costs nothing, or if nobody knows."""
        prices = [node.price for node in self.state.nodes if node.price is not None]
        return sum(prices) if prices else None

    @property
    def cost(self) -> float | None:
        """Dollars so far; ``None`` as with `price`."""
        return self.meter.cost(self.price, time.time())

    @property
    def note(self) -> str:
        """What it is doing, and what is wrong with its links and nodes; empty if nothing is."""
        return "; ".join(filter(None, (self.doing, self._links.note, self._departures.note)))

    # Its life

    async def record(self) -> None:
        """Write the cluster down, in place of one of its name of which nothing is left."""
        there = registry.find(self.spec.name)
        if there and there.is_starting:
            raise SkyError(
                f"cluster {self.spec.name} is being started by another notebook: wait for it, or "
                "start one of another name with `--cluster NAME`."
            )
        if there and not await probe.answers(there, self.provider):
            await self._give_back(there.id, there.spec.get("place"))
            registry.remove(there.id)
        row = registry.described(self.spec, self.runtime_env.plugins)
        if isinstance(self.provider, CloudProvider):
            self.place = row["place"] = self.provider.location()
        try:
            registry.record(self.id, self.spec.name, self.provider.name, row)
        except KeyError:
            raise SkyError(
                f"there is a cluster {self.spec.name} already: use it with "
                f"`--cluster {self.spec.name}`, or end it with `%sky down {self.spec.name}`."
            ) from None

    async def start(self, progress: Progress) -> None:
        """Bring the machines up, wait for the ranks, form the group."""
        # Stop may come while machines start: whoever ends the cluster then ends the launch.
        launch = self.provider.launch(self.spec, self.id, self.runtime_env.preload, progress)
        self._launch = asyncio.get_running_loop().create_task(launch)
        machines = await asyncio.shield(self._launch)
        registry.record_machines(self.id, [machine.row() for machine in machines])
        await self.connect(machines, 0)
        if len(self.connections) > 1:
            progress("checking the network")
        await health.check_ways(self.connections)
        if self.runtime_env.preload:
            progress(f"importing {', '.join(self.runtime_env.preload)}")
        async with process_group.deadline(self.timeouts.start, "the nodes did not get ready"):
            await self.until(lambda: bool(self.state.versions) and self.state.settled)
        for name, reason in self.state.missing:
            raise SkyError(f"{name} cannot be imported on the nodes: {reason}")
        self.warnings += version_check.check(self.versions)
        if self.runtime_env.together:
            progress("forming the group")
        self.state = replace(self.state, phase="ready")
        await self.form()

    async def attach(self, machines: Sequence[Machine], leaving: Sequence[Machine] = ()) -> None:
        """Take up a cluster that is there already; end what is ``leaving`` it."""
        await attach.attach(self, machines, leaving)

    async def connect(self, machines: Sequence[Machine], since: int | None) -> list[Message]:
        """Have these machines be the cluster, and return what their agents say of themselves."""
        self.rearrange(
            [Connection(each, self.take, self._on_lost, self.visits) for each in machines]
        )
        welcomes = await asyncio.gather(*(each.open(since) for each in self.connections))
        for welcome in welcomes:
            version_check.check_agent(welcome)
        return welcomes

    # Who belongs to it

    def rearrange(self, connections: Sequence[Connection]) -> None:
        """Have these connections, and what is behind them, be the cluster."""
        if (spent := self.cost) is not None:
            # From now on it costs something else.
            self.meter = CostMeter(spent, time.time())
        self.connections = list(connections)
        machines = [connection.machine for connection in connections]
        nodes = [node for machine in machines for node in machine.nodes]
        self.state = self.state.rearranged(sorted(nodes, key=lambda node: node.node))
        hosts = {node.host for node in nodes}
        self.versions = {host: self.versions[host] for host in hosts & self.versions.keys()}
        self.sync.shares_files = all(machine.shares_files for machine in machines)
        for connection in connections:
            connection.on_report = self._on_report
        self._links.watch(connections)
        self.wake()

    def adopt(self, connection: Connection) -> None:
        """Have what happens to a machine happen to the cluster, from now on."""
        connection.on_event, connection.on_lost = self.take, self._on_lost

    def warn(self, sentences: Iterable[str]) -> None:
        """Note what the person should know, if it was not said yet."""
        self.warnings += tuple(each for each in sentences if each not in self.warnings)

    def forget(self, ranks: Iterable[int]) -> None:
        """Note that ranks are there no more."""
        for rank in ranks:
            self.sync.forget(rank)
            self.reports.pop(rank, None)

    async def restart(self, ranks: Sequence[int]) -> None:
        """End rank processes, wait for fresh ones, form the group."""
        pids = {rank.rank: rank.pid for rank in self.state.ranks if rank.rank in ranks}
        await asyncio.gather(
            *(each.request("kill", ranks=list(ranks)) for each in self.connections)
        )
        async with process_group.deadline(self.timeouts.start, "the ranks did not start again"):
            await self.until(
                lambda: (
                    self.state.settled
                    and all(r.pid != pids.get(r.rank, -1) for r in self.state.ranks)
                )
            )
        if not self.shared:
            # Else the notebook has begun with it, or will before its next run: two at once would
            # keep each other from it.
            await self.form()

    async def down(self, machines: Sequence[Machine] = ()) -> list[str]:
        """End everything, also what is left of ``machines`` that did not answer.

        Returns
        -------
        list of str
            The nodes that could not be reached; what is left there ends by itself.
        """
        self.on_end(ClusterLost(f"cluster {self.spec.name} was ended."))
        self.state = replace(self.state, phase="down")
        if self.repair:
            self.repair.cancel()
            await asyncio.gather(self.repair, return_exceptions=True)
        if self._launch and not self.connections:
            self._launch.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                machines = [*machines, *await self._launch]
        left = await asyncio.gather(*map(end, self.connections))
        left += await asyncio.gather(*map(remove, machines))
        registry.give_up(self.id)
        await self._give_back(self.id, self.place)
        registry.remove(self.id)
        self.wake()
        return [host for hosts in left for host in hosts]

    async def _give_back(self, identity: str, place: str | None) -> None:
        if isinstance(self.provider, CloudProvider):
            await self.provider.release_cluster(identity, place, lambda text: None)

    async def close(self) -> None:
        """Let go of the agents; they go on."""
        for connection in self.connections:
            connection.close()

    # The process group

    async def form(self) -> None:
        """Have all ranks form a group of a new generation."""
        await process_group.form(self)

    async def ready(self) -> None:
        """Wait until the ranks are there and in one group, forming it anew if it was broken."""
        if self.state.group and self.state.settled:
            return
        limit = self.timeouts.stop + self.timeouts.start
        async with process_group.deadline(limit, "the ranks are still busy"):
            await self.until(lambda: self.state.settled)
        if not self.state.group:
            await self.form()

    # Events

    def take(self, connection: Connection, event: Event) -> None:
        """Take note of something that happened on a node."""
        self.state = reduce(self.state, event)
        match event:
            case Formed(generation=generation) if generation > self.state.generation:
                self.outdated = True
            case Prepared(versions=versions):
                self.versions.update((node.host, versions) for node in connection.machine.nodes)
            case Formed(rank=rank, error=dict() as error):
                self.form_errors[rank] = error
            case Leaving():
                self._departures.see(connection, event)
            case Ending(reason=reason):
                self.lose(f"cluster {self.spec.name} has ended itself: {reason}.")
            case RankExited(rank=rank, reason=reason):
                self.sync.forget(rank)
                if self.forming.locked():
                    self.form_errors[rank] = {"type": "RankLost", "text": reason}
        self.on_event(connection, event)
        self.wake()

    def _on_report(self, report: list[dict[str, Any]]) -> None:
        self.reports.update({entry["rank"]: entry for entry in report})
        self.wake()

    def _on_lost(self, connection: Connection) -> None:
        if self.state.phase in ("lost", "down") or connection not in self.connections:
            return
        if recovery.can_replace(self):
            recovery.miss(self, connection)
            self.on_loss()
            return
        ranks = format_ranks(connection.ranks)
        where = f" on {connection.name}" if connection.machine.nodes[0].name else ""
        self.lose(
            f"cluster {self.spec.name} is lost: the agent of {ranks}{where} {connection.trouble}.",
            recovery.advice(self),
        )

    def lose(self, reason: str, advice: str = "") -> None:
        """Note that the cluster cannot be used any more."""
        self.state = replace(self.state, phase="lost")
        self.loss = ClusterLost(f"{reason} Run the cell again to start a new one{advice}.")
        self.on_end(self.loss)
        self.wake()

    def _on_notice(self, text: str) -> None:
        self.on_notice(text)
        self.wake()

    # Waiting

    def wake(self) -> None:
        """Have those look who wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in self.listeners:
            with contextlib.suppress(Exception):  # a panel that fails must not stop the cluster
                listener()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; raise when it cannot become so any more."""
        while not condition():
            if self.state.phase == "lost":
                raise self.loss
            if dead := [rank for rank in self.state.ranks if rank.phase == "dead"]:
                raise ClusterLost(
                    f"rank {dead[0].rank} does not start any more, {dead[0].trouble}: "
                    f"end the cluster with `%sky down {self.spec.name}` and start a new one."
                )
            await self._changed.wait()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Have something done beside, and keep it from being forgotten."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Who is where

    def connection(self, rank: int) -> Connection:
        """Return the connection to the agent of a rank."""
        for connection in self.connections:
            if rank in connection.ranks:
                return connection
        raise SkyError(f"cluster {self.spec.name} has no rank {rank}: {format_ranks(self.ranks)}.")

    def node(self, rank: int) -> Node:
        """Return the node of a rank."""
        return next(node for node in self.state.nodes if rank in node.ranks)
