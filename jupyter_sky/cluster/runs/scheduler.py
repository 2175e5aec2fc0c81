"""The scheduler of runs: they take turns, and each goes through the steps of `sending.steps`.

All of this happens in the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from jupyter_sky.cluster.control import recovery, scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import ClusterListener, Done
from jupyter_sky.cluster.errors import busy
from jupyter_sky.cluster.inventory.owed_runs import OwedRun
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.monitor import Monitor
from jupyter_sky.cluster.runs.other_notebooks import UNKNOWN_NAMES, OtherNotebooks
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.sending import outcome, recorded, request
from jupyter_sky.cluster.runs.sending.steps import Steps
from jupyter_sky.cluster.runs.talk import Interrupting, QuietRequests, Talk
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.runtime_env import ClusterConfig
from jupyter_sky.errors import NoConnection, SkyError
from jupyter_sky.formatting import format_count, format_ranks
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.scaling import Scalable
from jupyter_sky.transport.protocol.events import (
    Display,
    Event,
    Lost,
    Metrics,
    Output,
    Prompted,
    RankExited,
    RunBegan,
    Saved,
    Told,
)


class Scheduler(ClusterListener):
    """Carries out the runs of a cluster, one after the other.

    Parameters
    ----------
    config
        Describes the cluster; the scheduler makes its controller and listens to it.

    Attributes
    ----------
    controller
        The controller of the cluster.
    monitor, others
        Makes snapshots of the cluster and its runs; the other notebooks that use it.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.controller = Controller(config, self)
        self.monitor = Monitor(self.controller)
        self._runs: dict[str, Run] = {}
        self._interrupted: set[str] = set()
        self._turn = asyncio.Lock()
        self._requests = QuietRequests(self.controller)
        interrupt = self._requests.interrupt
        self.others = OtherNotebooks(self.controller, self._foreign_runs, interrupt)
        self._steps = Steps(self.controller, self.others, self.monitor, self._turn, self._fail)

    def has_waiting(self, behind: Run) -> bool:
        """Return whether a run of this notebook or another waits until this one is over."""
        later = takewhile(lambda run: run is not behind, reversed(self._runs.values()))
        return any(not run.sent for run in later) or (behind.sent and self.others.have_queued)

    def new_run(self, task: Task, talk: Talk | None = None) -> Run:
        """Return a run that waits to be started."""
        run = self._make_run(task, talk=talk)
        self.monitor.add(run)
        return run

    def _make_run(self, task: Task, identity: str | None = None, talk: Talk | None = None) -> Run:
        host, reforms = self.controller.host, self.controller.runtime_env.reforms
        return Run(task, host, self._on_finish, identity, reforms, talk)

    def pop_unseen_run(self) -> Run | None:
        """Return the run that another kernel began, if any; from now on, it belongs to this one."""
        run, self.others.unseen = self.others.unseen, None
        return run

    def start(self, run: Run) -> None:
        """Carry out a run as soon as those before it are over."""
        if run.finished:
            return  # a run of another kernel may be over already
        self._runs[run.id] = run
        for note in filter(None, (self.controller.link_note, self.others.notice(run.task.code))):
            run.on_notice(note)
        self.controller.spawn(self._carry_out(run))

    async def _carry_out(self, run: Run) -> None:
        try:
            await self._steps.take(run)
        finally:
            self._runs.pop(run.id, None)

    def stop(self, run: Run) -> None:
        """Interrupt a run of this kernel, also one that was not started yet."""
        if run.finished or run.id in self._runs:
            self.interrupt(run.id)
        else:
            self._fail(run, SkyError("the run was stopped before it began."))

    def interrupt(self, run: str) -> None:
        """Interrupt a run of any kernel; one that waits for its turn does not begin."""
        self._interrupted.add(run)
        if own := self._runs.get(run):
            own.asked_to_stop = True
            if not own.sent:
                if not own.stopped:
                    own.mark_stopped()
                self._fail(own, SkyError("the run was stopped before it began."))
        self._requests.interrupt(run)

    def untold(self, run: Run) -> list[Connection]:
        """Return the nodes that have not heard yet, as far as known, that a run is stopped."""
        return self._requests.untold(run.id)

    async def interrupt_current(self) -> Interrupting:
        """Interrupt the run that is going on, or the next one; return whose that was, if any."""
        sent = {name for name, run in self._runs.items() if run.sent}
        current = sent | self.controller.state.busy_runs or set(list(self._runs)[:1])
        is_before = len(sent) < len(self._runs) and current <= self._foreign_runs()
        for run in current:
            self.interrupt(run)
        return ("others" if is_before else "own") if current else ""

    def kill(self, ranks: Iterable[int]) -> None:
        """End the processes of ranks; others take their place."""
        self._requests.send("kill", self.controller.connections, ranks=sorted(ranks))

    async def scale(self, nodes: int, provider: Scalable, progress: Progress) -> list[str]:
        """Change the number of nodes of an idle cluster; see `scaling.scale`.

        Raises
        ------
        UsageError
            When the cluster is not idle.
        """
        controller, name = self.controller, self.controller.spec.name
        if note := controller.link_note:
            raise SkyError(f"cluster {name} cannot be scaled now: {note}.")
        async with self.others.kept_waiting(
            lambda: not (self._runs or controller.state.busy_runs)
        ) as is_free:
            if not is_free:
                raise busy(name)
            async with self._turn:
                await recovery.make_whole(self.controller)
                controller.activity = f"scaling to {format_count(nodes, 'node')}"
                try:
                    return await scaling.scale(controller, nodes, provider, progress)
                finally:
                    controller.activity = ""
                    controller.wake()

    async def renew(self, run: Run) -> None:
        """Replace the processes of a run's ranks, to try it again; see `recovery.renew`."""
        async with self._steps.turn_of(run):
            self._runs[run.id] = run  # who stops what goes on stops this, too
            try:
                await self.others.let_all_finish()
                await recovery.renew(self.controller, run.task.ranks)
            finally:
                self._runs.pop(run.id, None)

    def _foreign_runs(self) -> set[str]:
        """The runs that ranks are busy with, and that this kernel neither began nor follows."""
        unseen = self.others.unseen
        ours = self._runs.keys() - ({unseen.id} if unseen else set())
        return set(self.controller.state.busy_runs - ours - self._interrupted)

    def _fail(self, run: Run, trouble: SkyError | None) -> None:
        """End a run because one of its steps failed."""
        self.controller.sync.lost(run.task.update)
        if run.sent:
            # Nodes that have begun it cannot finish without the others.
            self._interrupted.add(run.id)
            self._requests.interrupt(run.id)
        run.end(trouble)

    # What happens

    def on_event(self, connection: Connection, event: Event) -> None:
        """Pass an event on to its run."""
        match event:
            case RunBegan(run=name) if name not in self._runs and name not in self._interrupted:
                sent = (run for run in self._runs.values() if run.sent)
                over = (run for run in sent if run.waiting.isdisjoint(connection.ranks))
                self.others.on_began(event, over)
            case Output() | Display():
                run = self._runs.get(event.run or "")
                if run and event.rank in run.task.ranks:
                    self.monitor.on_output(event)
                    run.on_output(event)
            case Metrics():
                run = self._runs.get(event.run)
                if run and event.rank in run.task.ranks:
                    # A script's processes log for ranks of their own; a rank only for itself.
                    is_script = run.task.code is None and run.task.call is None
                    run.metrics.add(event if is_script else replace(event, of=None))
            case Told() | Prompted() | Saved():
                run = self._runs.get(event.run)
                if run and run.waits_for(event.rank):
                    run.on_told(event, self.controller.connections)
            case RankExited():
                self.monitor.on_rank_exited(event)
                run = self._runs.get(event.run or "")
                self.others.on_over(event.run, event.rank)
                if run and run.waits_for(event.rank):
                    run.on_rank_exited(event)
                    self._interrupt_peers(run, connection)
            case Lost(others=others) if others:
                # The ends of these runs may be among the events that the node did not keep.
                for run in [each for each in self._runs.values() if each.sent]:
                    run.end(recovery.outcome_not_kept(connection))

    def on_ranks_done(self, done: Sequence[Done]) -> None:
        """Tell runs which of their ranks have finished."""
        for name in dict.fromkeys([event.run for _, event in done]):
            run, own = self._runs.get(name), [each for each in done if each[1].run == name]
            if run and outcome.may_be_unmatched(run, own):
                then = partial(self._on_parts_done, run, own)
                self.controller.spawn(outcome.give_up_unmatched(self.controller, run, own, then))
            elif run:
                self._on_parts_done(run, own)
            else:
                for _, event in own:
                    self.others.on_over(name, event.rank)

    def _on_parts_done(self, run: Run, done: Sequence[Done]) -> None:
        done = [each for each in done if run.waits_for(each[1].rank)]
        outcome.note_names(self.controller, run.task, [event for _, event in done])
        for connection, event in done:
            self.monitor.on_rank_done(event)
            run.on_rank_done(event)
            if run.failed:
                self._interrupt_peers(run, connection)

    def _interrupt_peers(self, run: Run, connection: Connection) -> None:
        """Interrupt the other ranks of a run in which one has failed, if they end with it."""
        if run.failed and (nodes := outcome.to_interrupt(self.controller, run, connection)):
            self._requests.interrupt(run.id, nodes)

    def on_notice(self, text: str) -> None:
        """Tell every run that is not over, so that its cell shows the notice."""
        for run in [each for each in self._runs.values() if not each.finished]:
            run.on_notice(text)

    def on_unseen_run(self, began: RunBegan, owed: OwedRun, untold: Sequence[int]) -> None:
        """Follow a run that another kernel began; called before its events."""
        task = request.task_of(began, self.controller.ranks, owed)
        run = self.others.unseen = self._runs[began.run] = self._make_run(task, began.run)
        run.sent, run.is_recorded = True, bool(owed.asked)
        run.started = run.began = time.monotonic() - max(0.0, began.seconds)
        run.data_sent.set()
        self.monitor.begin(run)
        if any(began.asked.values()) and not owed.asked:
            run.on_notice(UNKNOWN_NAMES)
        if untold and not (self.controller.visits or self.controller.shared):
            # The others might wait for them forever.
            text = f"the kernel that began this run ended before it had told {format_ranks(untold)}"
            self._fail(run, SkyError(f"{text}: it was stopped."))

    def on_malformed(self, connection: Connection, what: str) -> None:
        """End the runs on a node that sent something malformed: it may have been their end."""
        for run in list(self._runs.values()):
            ranks = sorted(run.waiting & connection.ranks) if run.sent else []
            for rank in ranks:
                outcome = recovery.not_understood(connection, what, rank, run.id)
                self.controller.on_event(connection, outcome)
            if ranks:
                self._requests.interrupt(run.id, [connection])

    def on_unreached(self, connection: Connection, seconds: float) -> None:
        """End the runs on a node that nobody has reached for too long."""
        is_wanted = any(not run.finished for run in self._runs.values())
        reason = recovery.give_up_unreached(self.controller, connection, seconds, is_wanted)
        for run in list(self._runs.values()):
            if reason and run.sent and not run.waiting.isdisjoint(connection.ranks):
                self._fail(run, NoConnection(reason))

    def on_agent_lost(self, connection: Connection) -> None:
        """Replace the node, or end the runs with the cluster."""
        others = self.others.unseen if self.controller.shared else None  # its notebook may go on
        sent = [run.id for run in self._runs.values() if run.sent and run is not others]
        if recovery.record_agent_loss(self.controller, connection, sent):
            self.controller.spawn(self._make_whole_in_turn())

    def on_end(self, trouble: SkyError) -> bool:
        """End all runs; return whether one of them is this notebook's."""
        runs = list(self._runs.values())
        for run in runs:
            run.end(trouble)
        return any(run is not self.others.unseen for run in runs)

    def _on_finish(self, run: Run) -> None:
        """Handle the end of a run."""
        controller = self.controller
        self.monitor.end(run)
        self._runs.pop(run.id, None)
        if run.is_recorded and (run.failed or run.stopped or not run.task.values):
            controller.spawn(recorded.settle(controller.id, run))
        controller.wake()
        if controller.alive and not controller.visits and not controller.state.group:
            # So that the next cell need not wait for the group.
            controller.spawn(self._make_whole_in_turn())

    async def _make_whole_in_turn(self) -> None:
        with contextlib.suppress(SkyError):
            while True:  # others may begin a run while this waits for its turn
                await self.controller.until(lambda: not self.controller.state.busy_runs)
                async with self._turn:
                    if not self.controller.state.busy_runs:
                        if self.controller.alive:
                            await recovery.make_whole(self.controller)
                        return

    async def finish_requests(self) -> None:
        """Wait a moment for requests on their way: a Stop must not be lost when the kernel ends."""
        await self._requests.finish()
