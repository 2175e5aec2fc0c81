"""A running cluster: it starts, runs things, recovers, and goes down.

Methods whose names start with an underscore, and those that say so, belong to the background loop;
the others are for the person's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_sky.cluster import registry
from jupyter_sky.cluster.connection import Connection
from jupyter_sky.cluster.errors import describe_ranks
from jupyter_sky.cluster.outbox import Outbox, Parcel
from jupyter_sky.cluster.run import Run, Work
from jupyter_sky.cluster.state import ClusterState, reduce, running
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.machine import Machine, Node, Progress, Provider
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import background
from jupyter_sky.transport.events import Event, Formed, Prepared, RankDone, RankExited, RankStarted
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.pickling import load, main_namespace

END_WITHIN = 10.0
"""Seconds for an agent to end everything of it."""


@dataclass(frozen=True)
class Frame:
    """What surrounds the runs of a cluster: what ranks enter before the first.

    Attributes
    ----------
    life
        A packed object with ``enter_process``, ``enter_app``, ``exit_app`` and ``exit_process``.
    blobs
        Its large parts.
    needs
        Names of the notebook that it uses.
    plugins
        Names of the plugins behind it.
    preload
        Modules that each node imports once, before ranks are forked.
    together
        Whether ranks form a group, so that one of them alone cannot go on.
    """

    life: Message
    blobs: Mapping[str, memoryview] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    together: bool = False


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    start: float = 120.0
    form: float = 60.0
    stop: float = 5.0


class Cluster:
    """A cluster that is up; made by ``start`` or ``attach``."""

    def __init__(
        self, spec: ClusterSpec, identity: str, provider: Provider, frame: Frame, limits: Limits
    ) -> None:
        self.spec = spec
        self.id = identity
        self.provider = provider
        self.frame = frame
        self.limits = limits
        self.outbox = Outbox()
        self.state = ClusterState.new([])
        self.listeners: list[Callable[[ClusterState], None]] = []
        self._connections: list[Connection] = []
        self._runs: dict[str, Run] = {}
        self._changed = asyncio.Event()
        self._stopping: set[str] = set()
        self._turn = asyncio.Lock()
        self._forming = asyncio.Lock()
        self._form_errors: dict[int, dict[str, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Its life, for the person's thread

    @classmethod
    def start(
        cls,
        spec: ClusterSpec,
        provider: Provider,
        frame: Frame,
        progress: Progress = lambda text: None,
        limits: Limits = Limits(),
    ) -> Cluster:
        """Start a cluster and return it when its ranks are ready.

        Raises
        ------
        SkyError
            In one sentence, when it does not come up; nothing of it is left then.
        """
        provider.check(spec, frame.preload)
        cluster = cls(spec, uuid.uuid4().hex[:8], provider, frame, limits)
        background.wait(cluster._record())
        try:
            background.wait(cluster._start(progress))
        except BaseException:
            background.wait(cluster._down())
            raise
        return cluster

    @classmethod
    def attach(
        cls, row: registry.Row, provider: Provider, frame: Frame, limits: Limits = Limits()
    ) -> Cluster | None:
        """Return the cluster of a registry row, or ``None`` if it is gone; its row goes then."""
        wanted = {name: value for name, value in row.spec.items() if name != "plugins"}
        spec = ClusterSpec(name=row.name, **wanted)
        cluster = cls(spec, row.id, provider, frame, limits)
        machines = [provider.machine(machine) for machine in row.machines]
        try:
            background.wait(cluster._attach(machines))
        except (OSError, SkyError):
            background.wait(cluster._down(machines))
            return None
        return cluster

    def run(self, work: Work) -> Run:
        """Start a run; runs of a cluster take turns."""
        run = Run(self, work)
        background.call(self._spawn, run)
        return run

    def interrupt(self) -> bool:
        """Stop what the ranks are busy with, whoever started it; say whether there was anything."""
        busy = {rank.run for rank in self.state.ranks if rank.run}
        for run in busy:
            background.call(self._stop, run)
        return bool(busy)

    def restart(self, ranks: Sequence[int] | None = None) -> None:
        """End rank processes and start fresh ones, with empty namespaces."""
        background.wait(self._restart(self.all_ranks if ranks is None else ranks))

    def down(self) -> None:
        """End the cluster, everything of it, and forget it."""
        background.wait(self._down())

    def close(self) -> None:
        """Let go of the cluster; it goes on until its time is over."""
        background.wait(self._close())

    def load(self, rank: int, packed: Message) -> Any:
        """Return a value that a rank packed."""
        return _load(self._connection(rank), packed)

    def log(self, rank: int, tail: int | None = None, offset: int = 0) -> tuple[bytes, int]:
        """Return a part of a rank's log, and the log's size in bytes."""
        request = self._connection(rank).request(
            "log", rank=rank, tail=tail, offset=offset, limit=4 * 1024 * 1024
        )
        answer = background.wait(request)
        return answer["data"], answer["size"]

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.name

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self.state.phase == "ready"

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Every rank, in order."""
        return tuple(rank.rank for rank in self.state.ranks)

    @property
    def sent_bytes(self) -> int:
        """Bytes that have left for the cluster on the present connections."""
        return sum(connection.sent_bytes for connection in self._connections)

    def host(self, rank: int) -> str:
        """Return the node of a rank, in words."""
        node = self._node(rank)
        return f"node {node.node}" if node.addr.startswith("127.") else node.addr

    # Start, attach, end

    async def _record(self) -> None:
        """Write the cluster down, in place of one of its name of which nothing is left."""
        there = registry.find(self.name)
        if there and not await _answers(there, self.provider):
            registry.remove(there.id)
        try:
            registry.record(self.id, self.name, self.provider.name, _row(self.spec, self.frame))
        except KeyError:
            raise SkyError(
                f"there is a cluster {self.name} already: use it with `--cluster {self.name}`, "
                f"or end it with `%sky down {self.name}`."
            ) from None

    async def _start(self, progress: Progress) -> None:
        machines = await self.provider.launch(self.spec, self.id, self.frame.preload, progress)
        registry.record_machines(self.id, [machine.row() for machine in machines])
        await self._connect(machines, since=0)
        if self.frame.preload:
            progress(f"importing {', '.join(self.frame.preload)}")
        async with _deadline(self.limits.start, "the nodes did not get ready"):
            await self._until(lambda: bool(self.state.versions) and self.state.settled)
        for name, reason in self.state.missing:
            raise SkyError(f"{name} cannot be imported on the nodes: {reason}")
        if self.frame.together:
            progress("forming the group")
        self.state = replace(self.state, phase="ready")
        await self._form()

    async def _attach(self, machines: Sequence[Machine]) -> None:
        for welcome in await self._connect(machines, since=None):
            if welcome["ending"]:
                raise ClusterLost("the cluster is about to end")
            for rank in welcome["ranks"]:
                self.outbox.remember(rank["rank"], rank["names"])
                if rank["pid"]:
                    self.state = reduce(self.state, RankStarted(rank["rank"], rank["pid"]))
                formed = Formed(rank["rank"], rank["generation"], None)
                self.state = reduce(self.state, formed)
                if rank["run"]:
                    self.state = running(self.state, [rank["rank"]], rank["run"])
            self.state = reduce(self.state, Prepared(welcome["versions"] or {}, {}))
        newest = max(rank.generation for rank in self.state.ranks)
        self.state = replace(self.state, generation=newest)
        self.state = replace(self.state, phase="ready")

    async def _connect(self, machines: Sequence[Machine], since: int | None) -> list[Message]:
        self.state = ClusterState.new([node for machine in machines for node in machine.nodes])
        self._connections = [
            Connection(machine, self._on_event, self._on_lost) for machine in machines
        ]
        return await asyncio.gather(*(each.open(since) for each in self._connections))

    async def _restart(self, ranks: Sequence[int]) -> None:
        pids = {rank.rank: rank.pid for rank in self.state.ranks if rank.rank in ranks}
        await asyncio.gather(*(each.request("kill", ranks=list(ranks)) for each in self._connections))
        async with _deadline(self.limits.start, "the ranks did not start again"):
            await self._until(
                lambda: self.state.settled
                and all(r.pid != pids.get(r.rank, -1) for r in self.state.ranks)
            )
        await self._form()

    async def _down(self, machines: Sequence[Machine] = ()) -> None:
        for run in list(self._runs.values()):
            run.give_up(ClusterLost(f"cluster {self.name} was ended."))
        self.state = replace(self.state, phase="down")

        async def end(connection: Connection) -> None:
            with contextlib.suppress(SkyError):
                await connection.request("end", within=END_WITHIN)
            connection.close()
            await connection.machine.remove()

        await asyncio.gather(*(end(connection) for connection in self._connections))
        for machine in machines:
            await machine.remove()
        registry.remove(self.id)
        self._notify()

    async def _close(self) -> None:
        for connection in self._connections:
            connection.close()

    # The process group

    async def _form(self) -> None:
        """Have all ranks form a group of a new generation."""
        async with self._forming:
            generation = self.state.generation + 1
            self.state = replace(self.state, generation=generation)
            self._form_errors.clear()
            nodes = self.state.nodes
            head = self._connection(0)
            answer = await head.request("reserve", rank=0, addr=nodes[0].addr)
            topology = {
                "cluster": self.name,
                "task_id": f"{self.name}-{self.id}",
                "generation": generation,
                "head_addr": nodes[0].addr,
                "head_port": answer["port"],
                "nodes": [node.message() for node in nodes],
            }
            parcel = self.outbox.parcel(self.frame.needs, main_namespace(), self.all_ranks)
            message = {"topology": topology, "life": self.frame.life, "names": parcel.groups}
            parts = {**parcel.blobs, **self.frame.blobs}
            await asyncio.gather(*(each.put(parts) for each in self._connections))
            await asyncio.gather(*(each.request("form", **message) for each in self._connections))
            self.outbox.sent(parcel)
            async with _deadline(self.limits.form, "the process group was not formed"):
                await self._until(lambda: self.state.group or bool(self._form_errors))
            if self._form_errors:
                rank, error = min(self._form_errors.items())
                raise SkyError(f"rank {rank} could not join the group: {_sentence(error)}")

    async def _ready(self) -> None:
        """Wait until the ranks are there and in one group, forming it anew if it was broken."""
        if self.state.group and self.state.settled:
            return
        strangers = {rank.run for rank in self.state.ranks if rank.run} - self._runs.keys()
        if strangers - self._stopping:
            raise SkyError(
                f"cluster {self.name} is busy with a run that was started before this kernel: "
                "wait for its end, or stop it with `%sky interrupt`."
            )
        async with _deadline(self.limits.stop + self.limits.start, "the ranks are still busy"):
            await self._until(lambda: self.state.settled)
        if not self.state.group:
            await self._form()

    # Runs, in the background loop

    def _spawn(self, run: Run) -> None:
        self._runs[run.id] = run
        task = asyncio.get_running_loop().create_task(self._carry_out(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, run: Run) -> None:
        try:
            async with self._turn:
                if not self.alive:
                    raise ClusterLost(f"cluster {self.name} is gone.")
                await self._ready()
                await self._send(run)
                while not run.finished:
                    await self._change()
        except SkyError as trouble:
            run.give_up(trouble)
        except Exception as error:
            run.give_up(SkyError(f"the run could not be sent: {type(error).__name__}: {error}"))
        finally:
            self._runs.pop(run.id, None)

    async def _send(self, run: Run) -> None:
        work = run.work
        message = {
            "run": run.id,
            "code": work.code,
            "call": work.call,
            "sources": dict(work.sources),
            "values": {rank: list(names) for rank, names in work.values.items()},
            "show": list(work.show),
            "together": self.frame.together and len(self.all_ranks) > 1,
            "deadline": self.limits.stop,
        }
        self.state = running(self.state, work.ranks, run.id)
        parcel = self.outbox.current(work.parcel)
        self.outbox.sent(parcel)
        await asyncio.gather(
            *(self._send_to(each, run, parcel, message) for each in self._connections)
        )

    async def _send_to(
        self, connection: Connection, run: Run, parcel: Parcel, message: Message
    ) -> None:
        ranks = [rank for rank in run.work.ranks if rank in connection.ranks]
        if not ranks:
            return
        groups = [
            group
            for group in parcel.groups
            if any(rank in connection.ranks for rank in group["ranks"])
        ]
        parts = {**parcel.blobs, **run.work.blobs}
        message = {**message, "names": groups, "ranks": ranks}
        for _ in range(2):
            if parts:
                await connection.put(parts)
            answer = await connection.request("run", **message)
            if "missing" not in answer:
                return
            # The node let go of what it was thought to have.
            connection.forget(answer["missing"])
        raise SkyError("a node has not enough shared memory for what this run needs")

    def stop(self, run: Run) -> None:
        """Interrupt a run; for the background loop."""
        self._stop(run.id)

    def _stop(self, run: str) -> None:
        self._stopping.add(run)
        message = {"run": run, "deadline": self.limits.stop}
        for connection in self._connections:
            self._tell(connection, "interrupt", **message)

    def kill(self, run: Run) -> None:
        """End the ranks that are still busy with a run; for the background loop."""
        for connection in self._connections:
            self._tell(connection, "kill", ranks=sorted(run.waiting))

    def run_over(self, run: Run) -> None:
        """Take note that a run has ended; for the background loop."""
        self._wake()
        if self.alive and not self.state.group:
            # So that the next cell finds the group formed.
            self._background(self._mend())

    async def _mend(self) -> None:
        with contextlib.suppress(SkyError):
            async with self._turn:
                if self.alive:
                    await self._ready()

    def _tell(self, connection: Connection, op: str, **fields: Any) -> None:
        async def tell() -> None:
            with contextlib.suppress(SkyError):
                await connection.request(op, **fields)

        self._background(tell())

    def _background(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Events

    def _on_event(self, connection: Connection, event: Event) -> None:
        self.state = reduce(self.state, event)
        match event:
            case Formed(rank=rank, error=dict() as error):
                self._form_errors[rank] = error
            case RankExited(rank=rank, reason=reason):
                self.outbox.forget(rank)
                if self._forming.locked():
                    self._form_errors[rank] = {"type": "RankLost", "text": reason}
        run = self._runs.get(getattr(event, "run", None) or "")
        if run:
            run.handle(event)
            if isinstance(event, RankDone | RankExited):
                self._release(connection, run)
        self._wake()

    def _release(self, failed: Connection, run: Run) -> None:
        """Tell the other machines when a rank failed; its own agent knows already."""
        if run.failed and self.frame.together:
            for connection in self._connections:
                if connection is not failed:
                    self._tell(connection, "interrupt", run=run.id, deadline=self.limits.stop)

    def _on_lost(self, connection: Connection) -> None:
        if self.state.phase in ("lost", "down"):
            return
        self.state = replace(self.state, phase="lost")
        ranks = describe_ranks(connection.ranks)
        trouble = ClusterLost(
            f"cluster {self.name} is lost: the agent of {ranks} ended. "
            "Run the cell again to start a new one."
        )
        for run in list(self._runs.values()):
            run.give_up(trouble)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._notify()

    def _notify(self) -> None:
        for listener in self.listeners:
            listener(self.state)

    async def _change(self) -> None:
        await self._changed.wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.state.phase == "lost":
                raise ClusterLost(f"cluster {self.name} is gone: an agent of it ended.")
            if dead := [rank for rank in self.state.ranks if rank.phase == "dead"]:
                raise ClusterLost(
                    f"rank {dead[0].rank} does not start any more, {dead[0].trouble}: "
                    f"end the cluster with `%sky down {self.name}` and start a new one."
                )
            await self._change()

    # Who is where

    def _connection(self, rank: int) -> Connection:
        for connection in self._connections:
            if rank in connection.ranks:
                return connection
        raise SkyError(f"cluster {self.name} has no rank {rank}: {describe_ranks(self.all_ranks)}.")

    def _node(self, rank: int) -> Node:
        return next(node for node in self.state.nodes if rank in node.ranks)


def _load(connection: Connection, packed: Message) -> Any:
    """Fetch the parts of a packed value and unpickle it, in the caller's thread."""

    def part(data: Any) -> Any:
        if isinstance(data, dict):
            return background.wait(connection.fetch(data["blob"], data["size"]))
        return bytearray(data)

    return load(part(packed["stream"]), [part(buffer) for buffer in packed["buffers"]])


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


async def _answers(row: registry.Row, provider: Provider) -> bool:
    """Return whether any machine of a cluster is still there; removes what is left if not."""
    if row.provider != provider.name:
        return True
    machines = [provider.machine(machine) for machine in row.machines]
    for machine in machines:
        with contextlib.suppress(OSError):
            (await machine.open()).close()
            return True
    for machine in machines:
        await machine.remove()
    return False


def _row(spec: ClusterSpec, frame: Frame) -> dict[str, Any]:
    """Return a spec as the registry keeps it: no image, whose variables can be secrets."""
    row = {name: getattr(spec, name) for name in ("nodes", "procs_per_node", "cpus", "memory")}
    accelerator = spec.accelerator
    row["accelerator"] = str(accelerator) if accelerator is not None else None
    row["idle_timeout"] = spec.idle_timeout
    row["plugins"] = list(frame.plugins)
    return row
