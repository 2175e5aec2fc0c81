"""A cluster, for the user's thread: each method waits for work in the background loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from jupyter_sky.cluster import rank_log
from jupyter_sky.cluster.additions.mounts import Mounts
from jupyter_sky.cluster.additions.news import News
from jupyter_sky.cluster.additions.packages import Packages
from jupyter_sky.cluster.additions.plugins import Plugins
from jupyter_sky.cluster.additions.variables import RankVariables
from jupyter_sky.cluster.calls.calls import Calls
from jupyter_sky.cluster.comparison.looks import Looks
from jupyter_sky.cluster.control import lifecycle, recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.files import Files
from jupyter_sky.cluster.control.listener import ClusterListener
from jupyter_sky.cluster.control.shells import NodeShells
from jupyter_sky.cluster.control.signals import as_interrupt
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.inventory.machines import every_machine_of
from jupyter_sky.cluster.inventory.storage.row import RegistryRow, runs_elsewhere
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.network.forward import Forward
from jupyter_sky.cluster.profiling.profiler import Profiler
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.talk import Interrupting
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.runtime_env import ClusterConfig, RuntimeEnv, Timeouts
from jupyter_sky.cluster.snapshot import KeptOutput, RunView, Snapshot
from jupyter_sky.cluster.state import ClusterState
from jupyter_sky.cluster.stopping.power import Power
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, format_ranks
from jupyter_sky.providers.base import Progress, Provider
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.scaling import Scalable
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.event_loop import call, wait, wait_uninterrupted, wait_with_cleanup

USUAL = Timeouts()
_LINES = 200  # lines of a rank's log in a snapshot
_SNAPSHOT_LIMIT = 256 * 1024  # bytes of a log in a snapshot


class Cluster:
    """A running cluster; made by ``start``, ``attach`` or ``visit``.

    Attributes
    ----------
    runtime_env, power
        The environment that its ranks have entered, and the means to stop its machines.
    sync, calls, work, profiler, looks, usage, others
        Parts for the namespace, calls, other work, profiles, looks, metrics, and other notebooks.
    packages, plugins, mounts, variables, news, pages, files, shells
        Parts for what is added to nodes, also elsewhere, and for their pages, files and shells.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._scheduler = runs = Scheduler(config)
        self._controller = controller = self._scheduler.controller
        self.runtime_env, self.power = config.runtime_env, Power(controller)
        self.sync, self.pages, self.work = controller.sync, controller.pages, controller.work
        self.calls, self.profiler = Calls(self._scheduler), Profiler(controller)
        self.looks, self.usage, self.others = Looks(controller), controller.usage, runs.others
        self.packages, self.plugins = Packages(controller), Plugins(controller)
        self.files, self.mounts, self.news = Files(controller), Mounts(controller), News(controller)
        self.shells, self.variables = NodeShells(controller), RankVariables(controller)

    @classmethod
    @as_interrupt()
    def start(
        cls,
        spec: ClusterSpec,
        provider: Provider,
        runtime_env: RuntimeEnv,
        progress: Progress = lambda text: None,
        timeouts: Timeouts = USUAL,
    ) -> Cluster:
        """Start a cluster and return it when its ranks are ready.

        Raises
        ------
        SkyError
            If it does not start, with one sentence; nothing of it is left then.
        """
        identity = wait(lifecycle.identity(spec, provider))
        cluster = cls(ClusterConfig(spec, identity, provider, runtime_env, timeouts))
        controller = cluster._controller
        controller.warn(provider.check(spec, runtime_env.preload))
        start = lifecycle.start(controller, progress)
        wait_with_cleanup(start, lambda: lifecycle.undo_start(controller))
        return cluster

    @classmethod
    def attach(
        cls,
        row: RegistryRow,
        provider: Provider,
        runtime_env: RuntimeEnv,
        timeouts: Timeouts = USUAL,
        visits: bool = False,
        volumes: Sequence[Volume] = (),
    ) -> Cluster | None:
        """Return the cluster of a registry row, or ``None`` if it is gone; its row is removed then.

        Raises
        ------
        SkyError
            If it exists, but cannot be used from here or now, or alone has files of ``volumes``.
        """
        if row.is_elsewhere:
            raise SkyError(runs_elsewhere(row))
        if row.is_being_scaled and not visits:
            raise SkyError(f"cluster {row.name} is being scaled by another notebook: wait for it.")
        cluster = cls(lifecycle.config_of(row, provider, runtime_env, timeouts, visits, volumes))
        return cluster if wait(lifecycle.attach(cluster._controller, row)) else None

    @classmethod
    def visit(cls, row: RegistryRow, provider: Provider) -> Cluster | None:
        """Return the cluster of a row to observe it, without keeping it up or marking runs seen."""
        return cls.attach(row, provider, RuntimeEnv(life=None), visits=True)

    @staticmethod
    def remove(row: RegistryRow, provider: Provider) -> list[str]:
        """End a cluster that cannot be attached, as far as it can be reached, and remove its row.

        Returns
        -------
        list of str
            The nodes that could not be told; they will be told when they answer again.
        """
        config = lifecycle.config_of(row, provider, RuntimeEnv(life=None))
        controller = Controller(config, ClusterListener())
        return wait_uninterrupted(lifecycle.down(controller, every_machine_of(row, provider)))

    # Runs

    def run(self, task: Task) -> RunHandle:
        """Return a run, which begins when it is followed; the runs of a cluster take turns.

        Raises
        ------
        UsageError
            If it has no ranks, or one that does not exist.
        """
        ranks = self.all_ranks
        missing = [] if task.ranks == ranks else sorted(set(task.ranks).difference(ranks))
        if not task.ranks or missing:
            what = f"there is no rank {missing[0]}" if task.ranks else "no rank was chosen"
            raise UsageError(f"{what}: {self.name} has {format_ranks(ranks)}.")
        return RunHandle(self._scheduler.new_run(task), self._scheduler)

    def pop_unseen_run(self) -> RunHandle | None:
        """Return, once, the run of another kernel whose end no notebook has seen."""
        run = self._scheduler.pop_unseen_run()
        return RunHandle(run, self._scheduler) if run else None

    def interrupt(self) -> Interrupting:
        """Stop what ranks are doing or about to begin; return whose it was, if there was any."""
        stopped = wait(self._scheduler.interrupt_current())
        return "own" if self.work.stop() else stopped

    def interrupt_run(self, run: str) -> None:
        """Stop one run of this notebook, even one that waits for its turn."""
        if not self.work.stop(run):
            call(self._scheduler.interrupt, run)

    def wait_until_idle(self, within: float) -> bool:
        """Wait until no rank is busy, at most ``within`` seconds; return whether that is so."""

        async def until_idle() -> None:
            async with asyncio.timeout(within):
                await self._controller.until(lambda: not self.state.busy_runs)

        try:
            wait(until_idle())
        except (TimeoutError, SkyError):
            return False
        return True

    # Its life

    def restart(self, ranks: Sequence[int] | None = None) -> None:
        """End rank processes and start new ones, with empty namespaces."""
        wait(lifecycle.restart(self._controller, self.all_ranks if ranks is None else ranks))

    @as_interrupt()
    def scale(
        self, nodes: int, provider: Provider | None = None, progress: Progress = lambda text: None
    ) -> list[str]:
        """Change the number of nodes; remaining ranks keep their numbers and variables.

        After Ctrl-C or a failure, the cluster has either its old or its new size.

        Parameters
        ----------
        nodes
            The new number. To shrink, the last nodes leave; the head always stays.
        provider
            Where new nodes come from, if not from the present provider.
        progress
            Called with the present step, in words.

        Returns
        -------
        list of str
            Nodes that left and could not be told; they will be told when they answer again.

        Raises
        ------
        UsageError
            If there cannot be that many, or while something runs.
        SkyError
            If nodes do not start; the cluster is then as it was.
        """
        provider, spec = provider or self.provider, replace(self.spec, nodes=nodes)
        if nodes == (has := len(self.state.nodes)):
            raise UsageError(f"{self.name} already has {format_count(has, 'node')}.")
        if not isinstance(provider, Scalable):
            raise UsageError(
                f"{provider.name} nodes cannot join or leave a cluster that is up: end it with "
                f"`%sky down` and start it again with `--nodes {nodes}`."
            )
        if nodes > has:
            self._controller.warn(provider.check(spec, self.runtime_env.preload, has))
        try:
            return wait_with_cleanup(self._scheduler.scale(nodes, provider, progress))
        except SkyError as error:
            if isinstance(error, UsageError) or not self.alive or len(self.state.nodes) != has:
                raise
            stays = f"{self.name} stays with {format_count(has, 'node')}"
            raise SkyError(f"{stays}: {error}") from None

    def down(self, progress: Progress = lambda text: None) -> list[str]:
        """End the cluster with everything that belongs to it, and remove it from the registry.

        Ctrl-C stops waiting for that, which is completed nevertheless.

        Parameters
        ----------
        progress
            Called with a description of the wait if a node does not answer.

        Returns
        -------
        list of str
            The nodes that could not be told; they will be told when they answer again.
        """
        return wait_uninterrupted(lifecycle.down(self._controller, progress=progress))

    def close(self, trouble: SkyError | None = None) -> None:
        """Close the connections to the cluster, which continues until it ends by itself.

        Parameters
        ----------
        trouble
            The reason, for those who wait for the end of a run; not needed if this process ends.
        """

        async def close() -> None:
            if trouble:
                self._scheduler.on_end(trouble)
            await self._scheduler.finish_requests()
            await self._controller.leave()

        wait(close())

    def forward(self, rank: int, addr: str, port: int, patience: float = 0.0) -> Forward:
        """Forward a port here to one that the node of a rank can reach; see `Forward`."""
        return Forward(partial(self._controller.connection, rank), addr, port, patience)

    # State

    def lacking(self, blobs: Iterable[str]) -> list[str]:
        """Return those of these blobs that some node lacks, as far as is known."""
        uploads = [each.uploads for each in self._controller.connections]
        return [key for key in blobs if not all(each.has(key) for each in uploads)]

    def log(self, rank: int, tail: int | None = None, offset: int = 0) -> rank_log.LogPart:
        """Return a part of a rank's log: so many last lines, or what begins at an offset."""
        return wait(rank_log.read(self._controller, rank, rank_log.LogPlace(tail, offset)))

    def log_reader(self, follows: bool) -> rank_log.LogReader:
        """Return what reads logs of several ranks part by part."""
        return rank_log.LogReader(self._controller, follows)

    def where(self) -> Findings:
        """Return where the ranks are, and which of them the others wait for."""
        return wait(self._scheduler.monitor.where())

    def snapshot(self, rank: int | None = None, run: str | None = None) -> Snapshot:
        """Return the snapshot of the cluster and a run, for strip and sidebar.

        Parameters
        ----------
        rank
            The rank whose output it contains; by default, the one that is shown in the cell.
        run
            The run; by default, the last one. Of one that is no longer known it has none.
        """
        monitor = self._scheduler.monitor
        snapshot = monitor.snapshot(run)
        is_other = rank is not None and rank != monitor.shown_rank(run)
        if is_other and rank in self.all_ranks and self.alive:
            place = rank_log.LogPlace(_LINES, limit=_SNAPSHOT_LIMIT)
            part = wait(rank_log.read(self._controller, rank, place))
            shown = part.of_run(snapshot["run"]["id"]) if snapshot["run"] else part.data
            snapshot["output"] = {"rank": rank, "text": shown.decode(errors="replace")}
        return snapshot

    def ended_runs(self) -> list[RunView]:
        """Return the last runs that are over, in the order of their ends."""
        return self._scheduler.monitor.ended()

    def metrics(self) -> Curves:
        """Return the metrics of the last run that logged any."""
        return self._scheduler.monitor.metrics()

    def run_output(self, run: str) -> KeptOutput:
        """Return the output of the first shown rank in a run, as far as it is kept."""
        return self._scheduler.monitor.output(run)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change from now on, in the background thread."""
        self._controller.observers.append(listener)

    @property
    def id(self) -> str:
        """An id that no other cluster has, now or later."""
        return self._controller.id

    @property
    def spec(self) -> ClusterSpec:
        """The user's specification."""
        return self._controller.spec

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.name

    @property
    def provider(self) -> Provider:
        """Where its nodes come from."""
        return self._controller.provider

    @property
    def state(self) -> ClusterState:
        """Its present state."""
        return self._controller.state

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Every rank, in order."""
        return self._controller.ranks

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self._controller.alive

    @property
    def unreached(self) -> list[str]:
        """The nodes that nobody has reached for as long as a run waits for them."""
        return recovery.unreached(self._controller)

    @property
    def outdated(self) -> bool:
        """Whether another kernel has changed it since: attach it again to see its present state."""
        return self._controller.formation.outdated

    @property
    def shared(self) -> bool:
        """Whether a notebook was connected to it before this process."""
        return self._controller.shared

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user about the nodes' versions."""
        return self._controller.warnings

    @property
    def price(self) -> float | None:
        """Dollars per hour; ``None`` if it costs nothing, or if that is not known."""
        return self._controller.cost.rate.price

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to the cluster by this kernel."""
        return self._controller.sent_bytes
