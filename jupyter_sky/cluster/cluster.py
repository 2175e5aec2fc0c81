"""A cluster, for the person's thread: what can be done with it waits for the background loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import probe, registry
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.runtime_env import RuntimeEnv, Timeouts
from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.cluster.state import ClusterState
from jupyter_sky.cluster.version_check import VersionMismatch
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.formatting import format_count, format_ranks
from jupyter_sky.providers.base import AgentGone, Progress, Provider, Scalable
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.event_loop import wait_with_cleanup

USUAL = Timeouts()
_LINES = 200  # of a rank's log in a snapshot


class Cluster:
    """A cluster that is up; made by ``start`` or ``attach``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._scheduler = Scheduler(controller)
        self.runtime_env = controller.runtime_env
        self.sync = controller.sync

    @classmethod
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
            In one sentence, when it does not come up; nothing of it is left then.
        """
        warnings = provider.check(spec, runtime_env.preload)
        controller = Controller(spec, uuid.uuid4().hex[:8], provider, runtime_env, timeouts)
        controller.warnings = warnings
        event_loop.wait(controller.record())
        try:
            event_loop.wait(controller.start(progress))
        except BaseException:
            event_loop.wait(controller.down())
            raise
        return cls(controller)

    @classmethod
    def visit(cls, row: registry.Row, provider: Provider) -> Cluster | None:
        """Return the cluster of a registry row to read its logs, follow its run, or stop that.

        A visitor keeps nothing up, and what it sees stays new to the notebook.
        """
        return cls.attach(row, provider, RuntimeEnv(life={}), visits=True)

    @classmethod
    def attach(
        cls,
        row: registry.Row,
        provider: Provider,
        runtime_env: RuntimeEnv,
        timeouts: Timeouts = USUAL,
        visits: bool = False,
    ) -> Cluster | None:
        """Return the cluster of a registry row, or ``None`` if it is gone; its row goes then."""
        if row.is_elsewhere:
            raise SkyError(
                f"cluster {row.name} runs on {row.machines[0]['computer']}, which shares its "
                "registry with this computer: use it there, or another name here with "
                "`--cluster NAME`."
            )
        if row.is_being_scaled and not visits:
            raise SkyError(f"cluster {row.name} is being scaled by another notebook: wait for it.")
        controller = _controller(row, provider, runtime_env, timeouts, visits)
        cluster = cls(controller)
        machines = [provider.machine(machine) for machine in row.machines]
        leaving = [provider.machine(machine) for machine in row.leaving]
        try:
            event_loop.wait(controller.attach(machines, leaving))
        except VersionMismatch:
            # Its nodes are well, and another kernel can use them.
            event_loop.wait(controller.close())
            raise
        except AgentGone:
            # Whoever looks on, or comes while others replace a node, takes nothing away.
            if (visits or controller.spec.replace) and event_loop.wait(
                probe.answers(row, provider)
            ):
                event_loop.wait(controller.close())
                raise SkyError(
                    f"cluster {row.name} has lost a node, which the notebook that uses it sees to; "
                    f"if there is none, end the cluster with `%sky down {row.name}`."
                ) from None
            event_loop.wait(controller.down([*machines, *leaving]))
            return None
        except (OSError, ClusterLost) as error:
            # It may be busy, or asleep: nothing of it is touched.
            event_loop.wait(controller.close())
            raise SkyError(
                f"cluster {row.name} is there but does not answer ({error}): try again, or end it "
                f"with `%sky down {row.name}`."
            ) from None
        return cluster

    @staticmethod
    def abandon(row: registry.Row, provider: Provider) -> list[str]:
        """End a cluster that cannot be attached, as far as it is reached, and forget it.

        Returns
        -------
        list of str
            The nodes that could not be reached; what is left there ends by itself.
        """
        controller = _controller(row, provider, RuntimeEnv(life={}), USUAL)
        machines = [provider.machine(each) for each in [*row.machines, *row.leaving]]
        return event_loop.wait(controller.down(machines))

    def run(self, task: Task) -> Run:
        """Return a run, which begins when somebody follows it; runs of a cluster take turns.

        Raises
        ------
        UsageError
            When it is for no rank at all, or for one that is not there.
        """
        there = self.all_ranks
        if not task.ranks:
            raise UsageError(f"no rank was chosen: {self.name} has {format_ranks(there)}.")
        if missing := sorted(set(task.ranks) - set(there)):
            raise UsageError(
                f"there is no rank {missing[0]}: {self.name} has {format_ranks(there)}."
            )
        return Run(self._scheduler, task)

    def take_up(self) -> Run | None:
        """Return the run that another kernel began and nobody has seen the end of, once."""
        return self._scheduler.give_unseen()

    def know(self, image: Image) -> None:
        """Note what is installed on its nodes, which the registry does not keep, for new ones."""
        self._controller.spec = replace(self.spec, image=image)

    def interrupt(self) -> bool:
        """Stop what the ranks are busy with, whoever started it; say whether there was anything."""
        busy = {rank.run for rank in self.state.ranks if rank.run}
        for run in busy:
            event_loop.call(self._scheduler.stop, run)
        return bool(busy)

    def calm(self, within: float) -> bool:
        """Wait until no rank is busy, ``within`` so many seconds; say whether that came true."""

        async def until_calm() -> None:
            async with asyncio.timeout(within):
                await self._controller.until(lambda: not any(rank.run for rank in self.state.ranks))

        try:
            event_loop.wait(until_calm())
        except (TimeoutError, SkyError):
            return False
        return True

    def restart(self, ranks: Sequence[int] | None = None) -> None:
        """End rank processes and start fresh ones, with empty namespaces."""
        event_loop.wait(self._controller.restart(self.all_ranks if ranks is None else ranks))

    def scale(
        self, nodes: int, provider: Provider | None = None, progress: Progress = lambda text: None
    ) -> list[str]:
        """Give the cluster more nodes, or fewer; ranks that stay keep their number and variables.

        Ctrl-C, and whatever fails, leaves the cluster as it was, or as it shall be.

        Parameters
        ----------
        nodes
            How many it shall have. The last ones leave; the head stays.
        provider
            Where others come from, if not from where those came that it has.
        progress
            Told what is going on.

        Returns
        -------
        list of str
            Nodes that left and could not be reached; what is left there ends by itself.

        Raises
        ------
        UsageError
            When there cannot be so many, or while something runs.
        SkyError
            When nodes do not come; the cluster is as it was then.
        """
        provider = provider or self.provider
        spec, has = replace(self.spec, nodes=nodes), len(self.state.nodes)
        if nodes == has:
            raise UsageError(f"{self.name} has {format_count(has, 'node')} already.")
        if not isinstance(provider, Scalable):
            raise UsageError(
                f"{provider.name} nodes cannot join or leave a cluster that is up: end it with "
                f"`%sky down` and start it anew with `--nodes {nodes}`."
            )
        if nodes > has:
            self._controller.warn(provider.check(spec, self.runtime_env.preload))
        try:
            return wait_with_cleanup(self._scheduler.scale(nodes, provider, progress))
        except UsageError:
            raise
        except SkyError as error:
            if not self.alive or len(self.state.nodes) != has:
                raise
            stays = f"{self.name} stays with {format_count(has, 'node')}"
            raise SkyError(f"{stays}: {error}") from None

    def down(self) -> list[str]:
        """End the cluster, everything of it, and forget it.

        Returns
        -------
        list of str
            The nodes that could not be reached; what is left there ends by itself.
        """
        return event_loop.wait(self._controller.down())

    def close(self) -> None:
        """Let go of the cluster; it goes on until its time is over."""
        event_loop.wait(self._controller.close())

    def log(self, rank: int, tail: int | None = None, offset: int = 0) -> tuple[bytes, int]:
        """Return a part of a rank's log, and the log's size in bytes."""
        request = self._controller.connection(rank).request(
            "log", rank=rank, tail=tail, offset=offset, limit=4 * 1024 * 1024
        )
        answer = event_loop.wait(request)
        return answer["data"], answer["size"]

    def snapshot(self, rank: int | None = None) -> Snapshot:
        """Return what panel and sidebar show of it.

        Parameters
        ----------
        rank
            The rank whose output is in it; by default the one that is shown in the cell.
        """
        watch = self._scheduler.watch
        snapshot = watch.snapshot()
        if rank in self.all_ranks and rank != watch.shown_rank and self.alive:
            data, _ = self.log(rank, tail=_LINES)
            snapshot["output"] = {"rank": rank, "text": data.decode(errors="replace")}
        return snapshot

    def listen(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called in the background thread whenever something changed."""
        self._controller.listeners.append(listener)

    @property
    def id(self) -> str:
        """What no other cluster is called, now or later."""
        return self._controller.id

    @property
    def spec(self) -> ClusterSpec:
        """What was asked for."""
        return self._controller.spec

    @property
    def shared(self) -> bool:
        """Whether a notebook was connected to it before this process."""
        return self._controller.shared

    @property
    def provider(self) -> Provider:
        """Where its nodes come from."""
        return self._controller.provider

    @property
    def state(self) -> ClusterState:
        """What is known of it at this moment."""
        return self._controller.state

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.spec.name

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the person should know of the nodes' versions, a sentence each."""
        return self._controller.warnings

    @property
    def alive(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self._controller.alive

    @property
    def outdated(self) -> bool:
        """Whether somebody else has changed it since: attach it to know it as it is."""
        return self._controller.outdated

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Every rank, in order."""
        return self._controller.ranks

    @property
    def price(self) -> float | None:
        """Dollars an hour; ``None`` if it costs nothing, or if nobody knows."""
        return self._controller.price

    @property
    def sent_bytes(self) -> int:
        """Bytes that have left for the cluster on the present connections."""
        return sum(connection.sent_bytes for connection in self._controller.connections)

    @property
    def sending_note(self) -> str:
        """How data leaves for the cluster and why, where the connection is slow; or empty."""
        notes = [connection.upload.note for connection in self._controller.connections]
        return next(filter(None, notes), "")


def _controller(
    row: registry.Row,
    provider: Provider,
    runtime_env: RuntimeEnv,
    timeouts: Timeouts,
    visits: bool = False,
) -> Controller:
    names = [field.name for field in fields(ClusterSpec)]
    spec = ClusterSpec(name=row.name, **{n: row.spec[n] for n in names if n in row.spec})
    controller = Controller(spec, row.id, provider, runtime_env, timeouts, visits)
    controller.place, controller.meter = row.spec.get("place"), row.meter
    return controller
