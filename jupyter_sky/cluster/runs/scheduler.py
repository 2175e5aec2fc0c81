"""How runs get to the ranks: one after the other, and what becomes of them. In the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from jupyter_sky.cluster.control import recovery, scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.monitor import Monitor
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import running
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.formatting import format_count, format_ranks
from jupyter_sky.providers.base import Progress, Scalable
from jupyter_sky.transport.events import Display, Event, Output, RankDone, RankExited, RunBegan
from jupyter_sky.transport.frames import Message


class Scheduler:
    """Carries runs out; they take turns."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._runs: dict[str, Run] = {}
        self._stopping: set[str] = set()
        self._turn = asyncio.Lock()
        self.watch = Monitor(controller)
        controller.on_event = self._on_event
        controller.on_end = self._on_end
        controller.on_loss = lambda: controller.spawn(self._mend())
        controller.on_notice = self._on_notice
        controller.on_take_up = self._take_up
        self._unseen: Run | None = None

    def start(self, run: Run) -> None:
        """Begin with a run, as soon as those before it are over."""
        self._runs[run.id] = run
        self.controller.spawn(self._carry_out(run))

    async def scale(self, nodes: int, provider: Scalable, progress: Progress) -> list[str]:
        """Give the cluster so many nodes, while nothing runs on it; see `scaling.scale`.

        Raises
        ------
        UsageError
            When something does.
        """
        controller = self.controller
        name = controller.spec.name
        if self._runs or any(rank.run for rank in controller.state.ranks):
            raise UsageError(
                f"cluster {name} is busy: scale it when the run is over, or stop that first with "
                "`%sky interrupt`."
            )
        async with self._turn:
            await self._make_whole()
            controller.doing = f"scaling to {format_count(nodes, 'node')}"
            try:
                return await scaling.scale(controller, nodes, provider, progress)
            finally:
                controller.doing = ""
                controller.wake()

    def _take_up(self, began: RunBegan) -> None:
        task = Task(
            tuple(began.ranks),
            values={rank: tuple(names) for rank, names in began.asked.items()},
            show=tuple(began.show),
            title=began.title,
        )
        run = self._unseen = self._runs[began.run] = Run(self, task, began.run)
        run.sent = True
        run.left.set()
        self.watch.begin(run)

    def give_unseen(self) -> Run | None:
        """Return the run that another kernel began; it is this kernel's from now on."""
        run, self._unseen = self._unseen, None
        return run

    def stop(self, run: str) -> None:
        """Interrupt a run, whoever started it; one that waits for its turn does not begin."""
        self._stopping.add(run)
        own = self._runs.get(run)
        if own and not own.sent:
            self._fail(own, SkyError("the run was stopped before it began."))
        self._tell_all("interrupt", run=run, deadline=self.controller.timeouts.stop)

    def give_up(self, run: Run) -> None:
        """Interrupt a run of this kernel, also one that did not come to begin."""
        if run.finished or run.id in self._runs:
            self.stop(run.id)
        else:
            self._fail(run, SkyError("the run was stopped before it began."))

    def kill(self, run: Run) -> None:
        """End the ranks that are still busy with a run."""
        self._tell_all("kill", ranks=sorted(run.waiting))

    def over(self, run: Run) -> None:
        """Take note that a run has ended."""
        self.watch.end(run)
        self._runs.pop(run.id, None)
        self.controller.wake()
        controller = self.controller
        if controller.alive and not controller.visits and not controller.state.group:
            # So that the next cell finds the group formed.
            self.controller.spawn(self._mend())

    async def _carry_out(self, run: Run) -> None:
        controller = self.controller
        try:
            # Data leaves at once, also for a run that has to wait: the person may change it later.
            await self._put(run)
            run.left.set()
            async with self._turn:
                if run.finished:
                    return
                if not controller.alive:
                    raise controller.loss
                self._refuse_strangers()
                self._refuse_departed(run)
                if controller.outdated:
                    raise SkyError(
                        f"cluster {controller.spec.name} was changed by another kernel: run the "
                        "cell again."
                    )
                await self._make_whole()
                while controller.sync.is_outdated(run.task.update):
                    await controller.sync.refresh(run.task.update)
                    await self._make_whole()
                if run.finished:
                    return
                self.watch.begin(run)
                await self._send(run)
                await run.over.wait()
        except SkyError as trouble:
            # Where others take the place of a node, its ranks have told what happened to them.
            told = isinstance(trouble, ClusterLost) and run.failed and controller.alive
            self._fail(run, None if told else trouble)
        except Exception as error:
            self._fail(run, SkyError(f"the run could not be sent: {type(error).__name__}: {error}"))
        finally:
            run.left.set()
            self._runs.pop(run.id, None)
            # What was sent is the person's own memory: nothing here may hold on to it.
            run.task.update.blobs.clear()

    def _fail(self, run: Run, trouble: SkyError | None) -> None:
        self.controller.sync.lost(run.task.update)
        if run.sent:
            # Some nodes may have begun with it, which cannot come to an end without the others.
            self._tell_all("interrupt", run=run.id, deadline=self.controller.timeouts.stop)
        run.give_up(trouble)

    async def _put(self, run: Run) -> None:
        parts = {**run.task.update.blobs, **run.task.blobs}
        if parts:
            connections = self.controller.connections
            run.to_send = broadcast.missing(parts, connections)
            await broadcast.deliver(parts, connections, run.sending)

    def _refuse_strangers(self) -> None:
        busy = {rank.run for rank in self.controller.state.ranks if rank.run}
        ours = self._runs.keys() - ({self._unseen.id} if self._unseen else set())
        if busy - ours - self._stopping:
            raise SkyError(
                f"cluster {self.controller.spec.name} is busy with a run that was started before "
                "this kernel: follow it with `%sky attach`, or stop it with `%sky interrupt`."
            )

    def _refuse_departed(self, run: Run) -> None:
        if departed := set(run.task.ranks) - set(self.controller.ranks):
            raise SkyError(
                f"{format_ranks(list(departed))} left the cluster before the run began: run it "
                "again."
            )

    async def _send(self, run: Run) -> None:
        controller, task = self.controller, run.task
        message = {
            "run": run.id,
            "code": task.code,
            "call": task.call,
            "cells": dict(task.cells),
            "place": [task.place.title, task.place.above],
            "values": {rank: list(names) for rank, names in task.values.items()},
            "watched": sorted(task.update.watched.union(*task.values.values())),
            "outdated": task.update.outdated,
            "show": list(task.show),
            "title": task.title,
            "everyone": list(task.ranks),
            "together": controller.runtime_env.together and len(controller.ranks) > 1,
            "deadline": controller.timeouts.stop,
        }
        controller.state = running(controller.state, task.ranks, run.id)
        await asyncio.gather(
            *(self._send_to(each, run, message) for each in controller.connections)
        )

    async def _send_to(self, connection: Connection, run: Run, message: Message) -> None:
        here, update = connection.ranks, run.task.update
        ranks = [rank for rank in run.task.ranks if rank in here]
        if not ranks:
            return
        groups = [group for group in update.groups if not here.isdisjoint(group["ranks"])]
        parts = {**update.blobs, **run.task.blobs}
        message = {**message, "names": groups, "ranks": ranks}
        run.sent = True
        for _ in range(2):
            if parts:
                await connection.put(parts)
            answer = await connection.request("run", **message)
            if "missing" not in answer:
                return
            # The node let go of what it was thought to have.
            connection.forget(answer["missing"])
        size = sum(part.nbytes for part in parts.values())
        raise SkyError(
            f"the {size / 1e6:,.0f} MB that this run needs did not arrive: they were changed on "
            "the way, or a node has no room for them in shared memory."
        )

    async def _mend(self) -> None:
        with contextlib.suppress(SkyError):
            async with self._turn:
                if self.controller.alive:
                    await self._make_whole()

    async def _make_whole(self) -> None:
        """Have all ranks be there, in one group, also those of nodes that are lost."""
        controller = self.controller
        if any(connection.is_over for connection in controller.connections):
            loop = asyncio.get_running_loop()
            controller.repair = loop.create_task(recovery.replace_lost(controller))
            await asyncio.gather(controller.repair, return_exceptions=True)
            controller.repair = None
            if not controller.alive:
                raise controller.loss
        await controller.ready()

    def _on_event(self, connection: Connection, event: Event) -> None:
        run = self._runs.get(getattr(event, "run", None) or "")
        if run is None:
            return
        if isinstance(event, Output | Display):
            self.watch.see(event)
        if isinstance(event, RankDone):
            self.controller.sync.ran(
                run.task.update, event.rank, event.bound, well=event.outcome == "ok"
            )
            if event.arrived is not None and event.outcome != "ok":
                self.controller.sync.missed(run.task.update, event.rank, event.arrived)
        run.handle(event)
        if (
            isinstance(event, RankDone | RankExited)
            and run.failed
            and self.controller.runtime_env.together
        ):
            # The agent of the rank that failed knows already.
            others = [each for each in self.controller.connections if each is not connection]
            self._tell_all("interrupt", others, run=run.id, deadline=self.controller.timeouts.stop)

    def _on_notice(self, text: str) -> None:
        for run in self._runs.values():
            run.notice(text)

    def _on_end(self, trouble: SkyError) -> None:
        for run in list(self._runs.values()):
            run.give_up(trouble)

    def _tell_all(
        self, op: str, connections: Sequence[Connection] | None = None, **fields: Any
    ) -> None:
        for connection in self.controller.connections if connections is None else connections:
            self.controller.spawn(_tell(connection, op, **fields))


async def _tell(connection: Connection, op: str, **fields: Any) -> None:
    with contextlib.suppress(SkyError):
        await connection.request(op, **fields)
