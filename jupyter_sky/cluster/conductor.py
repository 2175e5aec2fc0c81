"""What goes on behind a cluster: its agents, its ranks, their group. All in the background loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster import freight, handshake, links, registry, survey
from jupyter_sky.cluster.connection import Connection
from jupyter_sky.cluster.departures import Departures
from jupyter_sky.cluster.errors import describe_ranks
from jupyter_sky.cluster.frame import Frame, Limits
from jupyter_sky.cluster.outbox import Outbox
from jupyter_sky.cluster.state import ClusterState, reduce, running
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.machine import (
    AgentGone,
    Landlord,
    Machine,
    Node,
    Progress,
    Provider,
)
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.events import (
    Ending,
    Event,
    Formed,
    Leaving,
    Prepared,
    RankExited,
    RankStarted,
    RunBegan,
    decode_event,
)
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.pickling import main_namespace

END_WITHIN = 10.0
"""Seconds for an agent to end everything of it."""


class Conductor:
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
    loss
        Why the cluster cannot be used, once it cannot.
    on_event
        Called with the connection it came from and each event, after the state has changed.
    on_notice
        Called with what the person should know of the links to its nodes.
    on_take_up
        Called with a run that another kernel began, before its events come.
    on_end
        Called with the reason when the cluster is lost or was ended.
    place
        Where its machines are rented, if they are.
    created
        When it was started, as ``time.time`` told it.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        identity: str,
        provider: Provider,
        frame: Frame,
        limits: Limits,
        visits: bool = False,
    ) -> None:
        self.spec = spec
        self.id = identity
        self.provider = provider
        self.frame = frame
        self.limits = limits
        self.visits = visits
        self.shared = False
        self.outbox = Outbox()
        self.state = ClusterState.new([])
        self.connections: list[Connection] = []
        self.reports: dict[int, dict[str, Any]] = {}
        self.warnings: tuple[str, ...] = ()
        self.loss = ClusterLost(f"cluster {spec.name} is gone.")
        self.listeners: list[Callable[[], None]] = []
        self.on_event: Callable[[Connection, Event], None] = lambda connection, event: None
        self.on_take_up: Callable[[RunBegan], None] = lambda began: None
        self.on_notice: Callable[[str], None] = lambda text: None
        self.on_end: Callable[[SkyError], None] = lambda trouble: None
        self._links = links.Links((), self.spawn, self._on_notice)
        self._departures = Departures(self.spawn, self._on_notice, self.wake)
        self._changed = asyncio.Event()
        self._forming = asyncio.Lock()
        self._form_errors: dict[int, dict[str, Any]] = {}
        self._versions: dict[str, handshake.Versions] = {}
        self.place: str | None = None
        self.created = time.time()
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
    def note(self) -> str:
        """What there is to say of the links to its nodes; empty if all is well."""
        return "; ".join(filter(None, (self._links.note, self._departures.note)))

    # Its life

    async def record(self) -> None:
        """Write the cluster down, in place of one of its name of which nothing is left."""
        there = registry.find(self.spec.name)
        if there and there.is_starting:
            raise SkyError(
                f"cluster {self.spec.name} is being started by another notebook: wait for it, or "
                "start one of another name with `--cluster NAME`."
            )
        if there and not await survey.answers(there, self.provider):
            await self._give_back(there.id, there.spec.get("place"))
            registry.remove(there.id)
        row = registry.described(self.spec, self.frame.plugins)
        if isinstance(self.provider, Landlord):
            self.place = row["place"] = self.provider.place()
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
        launch = self.provider.launch(self.spec, self.id, self.frame.preload, progress)
        self._launch = asyncio.get_running_loop().create_task(launch)
        machines = await asyncio.shield(self._launch)
        registry.record_machines(self.id, [machine.row() for machine in machines])
        await self._connect(machines, 0)
        if len(self.connections) > 1:
            progress("checking the network")
        await links.check_ways(self.connections)
        if self.frame.preload:
            progress(f"importing {', '.join(self.frame.preload)}")
        async with _deadline(self.limits.start, "the nodes did not get ready"):
            await self.until(lambda: bool(self.state.versions) and self.state.settled)
        for name, reason in self.state.missing:
            raise SkyError(f"{name} cannot be imported on the nodes: {reason}")
        self.warnings += handshake.check(self._versions)
        if self.frame.together:
            progress("forming the group")
        self.state = replace(self.state, phase="ready")
        await self.form()

    async def attach(self, machines: Sequence[Machine]) -> None:
        """Take up a cluster that is there already."""
        welcomes = await self._connect(machines, since=None)
        for connection, welcome in zip(self.connections, welcomes, strict=True):
            if welcome["ending"]:
                raise AgentGone("the cluster is about to end")
            for rank in welcome["ranks"]:
                self.outbox.remember(rank["rank"], rank["names"])
                if rank["pid"]:
                    self.state = reduce(self.state, RankStarted(rank["rank"], rank["pid"]))
                formed = Formed(rank["rank"], rank["generation"], None)
                self.state = reduce(self.state, formed)
                if rank["run"]:
                    self.state = running(self.state, [rank["rank"]], rank["run"])
            if welcome["versions"]:
                self._on_event(connection, Prepared(welcome["versions"], {}))
            if welcome["leaving"]:
                self._on_event(connection, decode_event(welcome["leaving"]))
        # One of an older version says nothing of it.
        self.shared = any(welcome.get("shared") for welcome in welcomes)
        self._take_up(welcomes)
        if not self.visits:
            self.warnings = handshake.check(self._versions)
        newest = max(rank.generation for rank in self.state.ranks)
        self.state = replace(self.state, generation=newest)
        self.state = replace(self.state, phase="ready")

    def _take_up(self, welcomes: Sequence[Message]) -> None:
        """Follow the agents from where the run began that nobody has seen the end of."""
        latest = [each["latest"] for each in welcomes if each["latest"]]
        unseen = [
            each
            for each in latest
            if (each["unseen"] and not self.visits)
            or any(rank.run == each["run"] for rank in self.state.ranks)
        ]
        run = unseen[0]["run"] if unseen else None
        if run:
            began = decode_event(unseen[0])
            assert isinstance(began, RunBegan)
            self.on_take_up(began)
        for connection, welcome in zip(self.connections, welcomes, strict=True):
            began_here = welcome["latest"] and welcome["latest"]["run"] == run
            connection.follow(welcome["latest"]["n"] if began_here else welcome["last"])

    async def _connect(self, machines: Sequence[Machine], since: int | None) -> list[Message]:
        self.state = ClusterState.new([node for machine in machines for node in machine.nodes])
        self.connections = [
            Connection(machine, self._on_event, self._on_lost, self.visits) for machine in machines
        ]
        self.outbox.needs.shares_files = all(machine.shares_files for machine in machines)
        for connection in self.connections:
            connection.on_report = self._on_report
        self._links = links.Links(self.connections, self.spawn, self._on_notice)
        return await asyncio.gather(*(each.open(since) for each in self.connections))

    async def restart(self, ranks: Sequence[int]) -> None:
        """End rank processes, wait for fresh ones, form the group."""
        pids = {rank.rank: rank.pid for rank in self.state.ranks if rank.rank in ranks}
        await asyncio.gather(
            *(each.request("kill", ranks=list(ranks)) for each in self.connections)
        )
        async with _deadline(self.limits.start, "the ranks did not start again"):
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

        left: list[str] = []

        async def end(connection: Connection) -> None:
            if connection.is_up:
                with contextlib.suppress(SkyError):
                    await connection.request("end", within=END_WITHIN)
            connection.close()
            await remove(connection.machine)

        async def remove(machine: Machine) -> None:
            try:
                async with asyncio.timeout(END_WITHIN):
                    await machine.remove()
            except (OSError, TimeoutError):
                left.extend(node.host for node in machine.nodes)

        if self._launch and not self.connections:
            self._launch.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                machines = [*machines, *await self._launch]
        await asyncio.gather(*(end(connection) for connection in self.connections))
        await asyncio.gather(*map(remove, machines))
        registry.give_up(self.id)
        await self._give_back(self.id, self.place)
        registry.remove(self.id)
        self.wake()
        return left

    async def _give_back(self, identity: str, place: str | None) -> None:
        if isinstance(self.provider, Landlord):
            await self.provider.release(identity, place, lambda text: None)

    async def close(self) -> None:
        """Let go of the agents; they go on."""
        for connection in self.connections:
            connection.close()

    # The process group

    async def form(self) -> None:
        """Have all ranks form a group of a new generation."""
        async with self._forming:
            generation = self.state.generation + 1
            self.state = replace(self.state, generation=generation)
            self._form_errors.clear()
            nodes = self.state.nodes
            head = self.connection(0)
            answer = await head.request("reserve", rank=0, addr=nodes[0].addr)
            topology = {
                "cluster": self.spec.name,
                "task_id": f"{self.spec.name}-{self.id}",
                "generation": generation,
                "head_addr": nodes[0].addr,
                "head_port": answer["port"],
                "nodes": [node.message() for node in nodes],
            }
            parcel = self.outbox.parcel(self.frame.needs, main_namespace(), self.ranks)
            message: Message = {
                "topology": topology,
                "life": self.frame.life,
                "names": parcel.groups,
            }
            parts = {**parcel.blobs, **self.frame.blobs}
            await freight.deliver(parts, self.connections)
            await asyncio.gather(*(each.request("form", **message) for each in self.connections))
            self.outbox.sent(parcel)
            async with _deadline(self.limits.form, "the process group was not formed"):
                await self.until(lambda: self.state.group or bool(self._form_errors))
            if self._form_errors:
                rank, error = min(self._form_errors.items())
                raise SkyError(f"rank {rank} could not join the group: {_sentence(error)}")

    async def ready(self) -> None:
        """Wait until the ranks are there and in one group, forming it anew if it was broken."""
        if self.state.group and self.state.settled:
            return
        async with _deadline(self.limits.stop + self.limits.start, "the ranks are still busy"):
            await self.until(lambda: self.state.settled)
        if not self.state.group:
            await self.form()

    # Events

    def _on_event(self, connection: Connection, event: Event) -> None:
        self.state = reduce(self.state, event)
        match event:
            case Prepared(versions=versions):
                self._versions.update((node.host, versions) for node in connection.machine.nodes)
            case Formed(rank=rank, error=dict() as error):
                self._form_errors[rank] = error
            case Leaving():
                self._departures.see(connection, event)
            case Ending(reason=reason):
                self._lose(f"cluster {self.spec.name} has ended itself: {reason}.")
            case RankExited(rank=rank, reason=reason):
                self.outbox.forget(rank)
                if self._forming.locked():
                    self._form_errors[rank] = {"type": "RankLost", "text": reason}
        self.on_event(connection, event)
        self.wake()

    def _on_report(self, report: list[dict[str, Any]]) -> None:
        self.reports.update({entry["rank"]: entry for entry in report})
        self.wake()

    def _on_lost(self, connection: Connection) -> None:
        if self.state.phase in ("lost", "down"):
            return
        ranks = describe_ranks(connection.ranks)
        where = f" on {connection.name}" if connection.machine.nodes[0].name else ""
        self._lose(
            f"cluster {self.spec.name} is lost: the agent of {ranks}{where} {connection.trouble}."
        )

    def _lose(self, reason: str) -> None:
        self.state = replace(self.state, phase="lost")
        self.loss = ClusterLost(f"{reason} Run the cell again to start a new one.")
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
        raise SkyError(
            f"cluster {self.spec.name} has no rank {rank}: {describe_ranks(self.ranks)}."
        )

    def node(self, rank: int) -> Node:
        """Return the node of a rank."""
        return next(node for node in self.state.nodes if rank in node.ranks)


@contextlib.asynccontextmanager
async def _deadline(seconds: float, trouble: str):
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise SkyError(f"{trouble} within {seconds:.0f} s.") from None


def _sentence(error: dict[str, Any]) -> str:
    lines = error["text"].strip().splitlines() or [error["type"]]
    return f"{error['type']}: {lines[0]}"
