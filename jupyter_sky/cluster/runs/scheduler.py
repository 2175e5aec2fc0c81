"""The scheduler of runs: they take turns, and each is carried out step by step.

Put its data, wait for its turn, make the cluster whole, dispatch it, wait for its end. All of it
runs in the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.control import process_group, recovery, scaling
from jupyter_sky.cluster.control.controller import ClusterConfig, ClusterListener, Controller
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.monitor import Monitor
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import running
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.formatting import format_bytes, format_count, format_ranks
from jupyter_sky.providers.base import Progress, Scalable
from jupyter_sky.transport.protocol.events import (
    Display,
    Event,
    Output,
    RankDone,
    RankExited,
    RunBegan,
)
from jupyter_sky.transport.protocol.messages import RunRequest


class Scheduler(ClusterListener):
    """Carries out the runs of a cluster, one after the other.

    Parameters
    ----------
    config
        What is known of the cluster; the scheduler makes its controller and listens to it.

    Attributes
    ----------
    controller
        The controller of the cluster.
    monitor
        What gives snapshots of the cluster and its runs.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.controller = Controller(config, self)
        self.monitor = Monitor(self.controller)
        self._runs: dict[str, Run] = {}
        self._unseen: Run | None = None
        self._interrupted: set[str] = set()
        self._turn = asyncio.Lock()

    def new_run(self, task: Task) -> Run:
        """Return a run that waits to be started."""
        run = Run(task, self.controller.host, self._on_finish)
        self.monitor.add(run)
        return run

    def pop_unseen_run(self) -> Run | None:
        """Return the run that another kernel began; it is this kernel's from now on."""
        run, self._unseen = self._unseen, None
        return run

    def start(self, run: Run) -> None:
        """Carry a run out as soon as those before it are over."""
        self._runs[run.id] = run
        self.controller.spawn(self._carry_out(run))

    def stop(self, run: Run) -> None:
        """Interrupt a run of this kernel, also one that was not started yet."""
        if run.finished or run.id in self._runs:
            self.interrupt(run.id)
        else:
            self._fail(run, SkyError("the run was stopped before it began."))

    def interrupt(self, run: str) -> None:
        """Interrupt a run, whoever started it; one that waits for its turn does not begin."""
        self._interrupted.add(run)
        own = self._runs.get(run)
        if own and not own.sent:
            self._fail(own, SkyError("the run was stopped before it began."))
        self._request_interrupt(run)

    def kill(self, run: Run) -> None:
        """End the rank processes that are still busy with a run."""
        self._request("kill", self.controller.connections, ranks=sorted(run.waiting))

    async def scale(self, nodes: int, provider: Scalable, progress: Progress) -> list[str]:
        """Change the number of nodes, while nothing runs on them; see `scaling.scale`.

        Raises
        ------
        UsageError
            When something runs.
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
            controller.activity = f"scaling to {format_count(nodes, 'node')}"
            try:
                return await scaling.scale(controller, nodes, provider, progress)
            finally:
                controller.activity = ""
                controller.wake()

    # The steps of a run

    async def _carry_out(self, run: Run) -> None:
        """Take a run through all its steps; what goes wrong in one of them ends it."""
        try:
            # Data leaves at once, also for a run that has to wait: the user may change it later.
            await self._put(run)
            run.left.set()
            await self._run_in_turn(run)
        except SkyError as trouble:
            # Where others take the place of a node, its ranks have told what happened to them.
            told = isinstance(trouble, ClusterLost) and run.failed and self.controller.alive
            self._fail(run, None if told else trouble)
        except Exception as error:
            self._fail(run, SkyError(f"the run could not be sent: {type(error).__name__}: {error}"))
        finally:
            run.left.set()
            self._runs.pop(run.id, None)
            # What was sent is the user's own memory: nothing here may hold on to it.
            run.task.update.blobs.clear()

    async def _put(self, run: Run) -> None:
        """Send the large parts of what a run needs to every node."""
        parts = {**run.task.update.blobs, **run.task.blobs}
        if parts:
            connections = self.controller.connections
            run.to_send = broadcast.bytes_to_send(parts, connections)
            await broadcast.send(parts, connections, run.on_sent)

    async def _run_in_turn(self, run: Run) -> None:
        """Wait for the run's turn, and keep the others waiting until it is over."""
        async with self._turn:
            if not run.finished and not run.sent:  # by another kernel
                await self._run_on_whole_cluster(run)
            await run.over.wait()

    async def _run_on_whole_cluster(self, run: Run) -> None:
        """Send the run to a cluster whose ranks are all there, in one group."""
        self._check(run)
        sync, update = self.controller.sync, run.task.update
        await self._make_whole()
        while sync.is_outdated(update):  # something that ranks were sent before it was lost
            await sync.refresh(update)
            await self._make_whole()
        if not run.finished:
            self.monitor.begin(run)
            await self._dispatch(run)

    def _check(self, run: Run) -> None:
        """Refuse a run that the cluster, as it has become since it was asked for, cannot do."""
        controller, name = self.controller, self.controller.spec.name
        if not controller.alive:
            raise controller.loss
        busy = {rank.run for rank in controller.state.ranks if rank.run}
        ours = self._runs.keys() - ({self._unseen.id} if self._unseen else set())
        if busy - ours - self._interrupted:
            raise SkyError(
                f"cluster {name} is busy with a run that was started before this kernel: follow it "
                "with `%sky attach`, or stop it with `%sky interrupt`."
            )
        if departed := set(run.task.ranks) - set(controller.ranks):
            raise SkyError(
                f"{format_ranks(departed)} left the cluster before the run began: run it again."
            )
        if controller.outdated:
            raise SkyError(f"cluster {name} was changed by another kernel: run the cell again.")

    async def _make_whole(self) -> None:
        """Replace nodes that are lost, wait for all ranks, and form their group if it is broken."""
        controller = self.controller
        if any(connection.is_over for connection in controller.connections):
            loop = asyncio.get_running_loop()
            controller.repair = loop.create_task(recovery.replace_lost(controller))
            await asyncio.gather(controller.repair, return_exceptions=True)
            controller.repair = None
            if not controller.alive:
                raise controller.loss
        await process_group.ensure_formed(controller)

    async def _dispatch(self, run: Run) -> None:
        """Send the request of a run to every agent that has ranks of it."""
        controller, task = self.controller, run.task
        update = task.update
        controller.state = running(controller.state, task.ranks, run.id)
        names: list[Any] = update.groups
        request: RunRequest = {
            "run": run.id,
            "code": task.code,
            "call": task.call,
            "cells": dict(task.cells),
            "place": (task.place.title, task.place.above),
            "values": {rank: list(asked) for rank, asked in task.values.items()},
            "watched": sorted(task.update.watched.union(*task.values.values())),
            "outdated": task.update.outdated,
            "names": names,
            "show": list(task.show),
            "title": task.title,
            "everyone": list(task.ranks),
            "ranks": list(task.ranks),
            "together": controller.runtime_env.together and len(controller.ranks) > 1,
            "deadline": controller.timeouts.stop,
        }
        blobs = {**update.blobs, **task.blobs}
        await asyncio.gather(
            *(self._send_request(each, run, request, blobs) for each in controller.connections)
        )

    async def _send_request(
        self,
        connection: Connection,
        run: Run,
        request: RunRequest,
        blobs: Mapping[str, memoryview],
    ) -> None:
        """Send the request of a run to one agent, and again if that lacks some of the data."""
        here = connection.ranks
        if not (ranks := [rank for rank in request["ranks"] if rank in here]):
            return
        names = [group for group in request["names"] if not here.isdisjoint(group["ranks"])]
        request = {**request, "ranks": ranks, "names": names}
        run.sent = True
        for _ in range(2):
            if blobs:
                await connection.uploads.put(blobs)
            answer = await connection.request("run", **request)
            if "missing" not in answer:
                return
            connection.uploads.note_missing(answer["missing"])
        size = sum(blob.nbytes for blob in blobs.values())
        raise SkyError(
            f"the {format_bytes(size)} that this run needs did not arrive: they were changed on "
            "the way, or a node has no room for them in shared memory."
        )

    def _fail(self, run: Run, trouble: SkyError | None) -> None:
        """End a run because one of its steps failed."""
        self.controller.sync.lost(run.task.update)
        if run.sent:
            # Some nodes may have begun with it, which cannot come to an end without the others.
            self._request_interrupt(run.id)
        run.end(trouble)

    # What happens

    def on_event(self, connection: Connection, event: Event) -> None:
        """Tell the run that an event belongs to."""
        match event:
            case Output() | Display():
                if run := self._runs.get(event.run or ""):
                    self.monitor.on_output(event)
                    run.on_output(event)
            case RankDone():
                self.monitor.on_rank_done(event)
                if run := self._runs.get(event.run):
                    self._on_rank_done(run, event)
                    self._interrupt_peers(run, connection)
            case RankExited():
                self.monitor.on_rank_exited(event)
                if run := self._runs.get(event.run or ""):
                    run.on_rank_exited(event)
                    self._interrupt_peers(run, connection)

    def _on_rank_done(self, run: Run, event: RankDone) -> None:
        sync, update, well = self.controller.sync, run.task.update, event.outcome == "ok"
        sync.ran(update, event.rank, event.bound, well=well)
        if event.arrived is not None and not well:
            sync.missed(update, event.rank, event.arrived)
        run.on_rank_done(event)

    def _interrupt_peers(self, run: Run, connection: Connection) -> None:
        """Interrupt the other ranks of a group in which one has failed."""
        if run.failed and self.controller.runtime_env.together:
            # The agent of the rank that failed knows already.
            others = [each for each in self.controller.connections if each is not connection]
            self._request_interrupt(run.id, others)

    def on_notice(self, text: str) -> None:
        """Tell every run, whose cell shows it."""
        for run in self._runs.values():
            run.on_notice(text)

    def on_unseen_run(self, began: RunBegan) -> None:
        """Make a run of this kernel from one that another began, before its events come."""
        task = Task(
            tuple(began.ranks),
            values={rank: tuple(names) for rank, names in began.asked.items()},
            show=tuple(began.show),
            title=began.title,
        )
        run = self._unseen = self._runs[began.run] = Run(
            task, self.controller.host, self._on_finish, began.run
        )
        run.sent = True
        run.left.set()
        self.monitor.begin(run)

    def on_agent_lost(self, connection: Connection) -> None:
        """Replace the node, or end the runs with the cluster."""
        if recovery.agent_lost(self.controller, connection):
            self.controller.spawn(self._make_whole_in_turn())

    def on_end(self, trouble: SkyError) -> None:
        """End all runs."""
        for run in list(self._runs.values()):
            run.end(trouble)

    def _on_finish(self, run: Run) -> None:
        """Handle the end of a run."""
        controller = self.controller
        self.monitor.end(run)
        self._runs.pop(run.id, None)
        controller.wake()
        if controller.alive and not controller.visits and not controller.state.group:
            # So that the next cell finds the group formed.
            controller.spawn(self._make_whole_in_turn())

    async def _make_whole_in_turn(self) -> None:
        with contextlib.suppress(SkyError):
            async with self._turn:
                if self.controller.alive:
                    await self._make_whole()

    # Requests whose answers are not waited for

    def _request_interrupt(self, run: str, connections: Sequence[Connection] | None = None) -> None:
        connections = self.controller.connections if connections is None else connections
        deadline = self.controller.timeouts.stop
        self._request("interrupt", connections, run=run, deadline=deadline)

    def _request(self, op: str, connections: Sequence[Connection], **fields: Any) -> None:
        for connection in connections:
            self.controller.spawn(_request_quietly(connection, op, **fields))


async def _request_quietly(connection: Connection, op: str, **fields: Any) -> None:
    """Make a request; an agent that does not do it is noticed elsewhere."""
    with contextlib.suppress(SkyError):
        await connection.request(op, **fields)
