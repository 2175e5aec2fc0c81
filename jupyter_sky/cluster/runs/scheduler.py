"""How runs get to the ranks: one after the other, and what becomes of them. In the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from jupyter_sky.cluster.control import recovery, scaling
from jupyter_sky.cluster.control.controller import Conductor
from jupyter_sky.cluster.namespace.sync import Parcel
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.monitor import Watch
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Work
from jupyter_sky.cluster.state import running
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.formatting import format_count, format_ranks
from jupyter_sky.providers.base import Progress, Scalable
from jupyter_sky.transport.events import Display, Event, Output, RankDone, RankExited, RunBegan
from jupyter_sky.transport.frames import Message


class Runner:
    """Carries runs out; they take turns."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._runs: dict[str, Run] = {}
        self._stopping: set[str] = set()
        self._turn = asyncio.Lock()
        self.watch = Watch(conductor)
        conductor.on_event = self._on_event
        conductor.on_end = self._on_end
        conductor.on_loss = lambda: conductor.spawn(self._mend())
        conductor.on_notice = self._on_notice
        conductor.on_take_up = self._take_up
        self._unseen: Run | None = None

    def start(self, run: Run) -> None:
        """Begin with a run, as soon as those before it are over."""
        self._runs[run.id] = run
        self.conductor.spawn(self._carry_out(run))

    async def scale(self, nodes: int, provider: Scalable, progress: Progress) -> list[str]:
        """Give the cluster so many nodes, while nothing runs on it; see `scaling.scale`.

        Raises
        ------
        UsageError
            When something does.
        """
        conductor = self.conductor
        name = conductor.spec.name
        if self._runs or any(rank.run for rank in conductor.state.ranks):
            raise UsageError(
                f"cluster {name} is busy: scale it when the run is over, or stop that first with "
                "`%sky interrupt`."
            )
        async with self._turn:
            await self._make_whole()
            conductor.doing = f"scaling to {format_count(nodes, 'node')}"
            try:
                return await scaling.scale(conductor, nodes, provider, progress)
            finally:
                conductor.doing = ""
                conductor.wake()

    def _take_up(self, began: RunBegan) -> None:
        work = Work(
            tuple(began.ranks),
            values={rank: tuple(names) for rank, names in began.asked.items()},
            show=tuple(began.show),
            title=began.title,
        )
        run = self._unseen = self._runs[began.run] = Run(self, work, began.run)
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
        self._tell_all("interrupt", run=run, deadline=self.conductor.limits.stop)

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
        self.conductor.wake()
        conductor = self.conductor
        if conductor.alive and not conductor.visits and not conductor.state.group:
            # So that the next cell finds the group formed.
            self.conductor.spawn(self._mend())

    async def _carry_out(self, run: Run) -> None:
        conductor = self.conductor
        try:
            # Data leaves at once, also for a run that has to wait: the person may change it later.
            await self._put(run)
            run.left.set()
            async with self._turn:
                if run.finished:
                    return
                if not conductor.alive:
                    raise conductor.loss
                self._refuse_strangers()
                self._refuse_departed(run)
                if conductor.outdated:
                    raise SkyError(
                        f"cluster {conductor.spec.name} was changed by another kernel: run the "
                        "cell again."
                    )
                await self._make_whole()
                if run.finished:
                    return
                self.watch.begin(run)
                await self._send(run)
                await run.over.wait()
        except SkyError as trouble:
            # Where others take the place of a node, its ranks have told what happened to them.
            told = isinstance(trouble, ClusterLost) and run.failed and conductor.alive
            self._fail(run, None if told else trouble)
        except Exception as error:
            self._fail(run, SkyError(f"the run could not be sent: {type(error).__name__}: {error}"))
        finally:
            run.left.set()
            self._runs.pop(run.id, None)
            # What was sent is the person's own memory: nothing here may hold on to it.
            run.work.parcel.blobs.clear()

    def _fail(self, run: Run, trouble: SkyError | None) -> None:
        self.conductor.outbox.lost(run.work.parcel)
        if run.sent:
            # Some nodes may have begun with it, which cannot come to an end without the others.
            self._tell_all("interrupt", run=run.id, deadline=self.conductor.limits.stop)
        run.give_up(trouble)

    async def _put(self, run: Run) -> None:
        parts = {**run.work.parcel.blobs, **run.work.blobs}
        if parts:
            connections = self.conductor.connections
            run.to_send = broadcast.missing(parts, connections)
            await broadcast.deliver(parts, connections, run.sending)

    def _refuse_strangers(self) -> None:
        busy = {rank.run for rank in self.conductor.state.ranks if rank.run}
        ours = self._runs.keys() - ({self._unseen.id} if self._unseen else set())
        if busy - ours - self._stopping:
            raise SkyError(
                f"cluster {self.conductor.spec.name} is busy with a run that was started before "
                "this kernel: follow it with `%sky attach`, or stop it with `%sky interrupt`."
            )

    def _refuse_departed(self, run: Run) -> None:
        if departed := set(run.work.ranks) - set(self.conductor.ranks):
            raise SkyError(
                f"{format_ranks(list(departed))} left the cluster before the run began: run it "
                "again."
            )

    async def _send(self, run: Run) -> None:
        conductor, work = self.conductor, run.work
        message = {
            "run": run.id,
            "code": work.code,
            "call": work.call,
            "cells": dict(work.cells),
            "place": [work.place.title, work.place.above],
            "values": {rank: list(names) for rank, names in work.values.items()},
            "watched": sorted(work.parcel.watched.union(*work.values.values())),
            "outdated": work.parcel.outdated,
            "show": list(work.show),
            "title": work.title,
            "everyone": list(work.ranks),
            "together": conductor.frame.together and len(conductor.ranks) > 1,
            "deadline": conductor.limits.stop,
        }
        parcel = conductor.outbox.current(work.parcel)
        conductor.state = running(conductor.state, work.ranks, run.id)
        await asyncio.gather(
            *(self._send_to(each, run, parcel, message) for each in conductor.connections)
        )

    async def _send_to(
        self, connection: Connection, run: Run, parcel: Parcel, message: Message
    ) -> None:
        here = connection.ranks
        ranks = [rank for rank in run.work.ranks if rank in here]
        if not ranks:
            return
        groups = [group for group in parcel.groups if not here.isdisjoint(group["ranks"])]
        parts = {**parcel.blobs, **run.work.blobs}
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
                if self.conductor.alive:
                    await self._make_whole()

    async def _make_whole(self) -> None:
        """Have all ranks be there, in one group, also those of nodes that are lost."""
        conductor = self.conductor
        if any(connection.is_over for connection in conductor.connections):
            loop = asyncio.get_running_loop()
            conductor.repair = loop.create_task(recovery.replace_lost(conductor))
            await asyncio.gather(conductor.repair, return_exceptions=True)
            conductor.repair = None
            if not conductor.alive:
                raise conductor.loss
        await conductor.ready()

    def _on_event(self, connection: Connection, event: Event) -> None:
        run = self._runs.get(getattr(event, "run", None) or "")
        if run is None:
            return
        if isinstance(event, Output | Display):
            self.watch.see(event)
        if isinstance(event, RankDone):
            self.conductor.outbox.ran(
                run.work.parcel, event.rank, event.bound, well=event.outcome == "ok"
            )
            if event.arrived is not None and event.outcome != "ok":
                self.conductor.outbox.missed(run.work.parcel, event.rank, event.arrived)
        run.handle(event)
        if (
            isinstance(event, RankDone | RankExited)
            and run.failed
            and self.conductor.frame.together
        ):
            # The agent of the rank that failed knows already.
            others = [each for each in self.conductor.connections if each is not connection]
            self._tell_all("interrupt", others, run=run.id, deadline=self.conductor.limits.stop)

    def _on_notice(self, text: str) -> None:
        for run in self._runs.values():
            run.notice(text)

    def _on_end(self, trouble: SkyError) -> None:
        for run in list(self._runs.values()):
            run.give_up(trouble)

    def _tell_all(
        self, op: str, connections: Sequence[Connection] | None = None, **fields: Any
    ) -> None:
        for connection in self.conductor.connections if connections is None else connections:
            self.conductor.spawn(_tell(connection, op, **fields))


async def _tell(connection: Connection, op: str, **fields: Any) -> None:
    with contextlib.suppress(SkyError):
        await connection.request(op, **fields)
