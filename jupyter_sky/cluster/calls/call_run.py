"""A run in which all ranks serve calls: each call goes to the rank that is the least busy.

It ends when there is no call left. All of this happens in the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from itertools import chain, islice

from jupyter_sky.cluster.calls.assignments import Assignment, Assignments
from jupyter_sky.cluster.calls.batch import Asked, Batch, BatchedCall
from jupyter_sky.cluster.calls.joined_updates import JoinedUpdates
from jupyter_sky.cluster.calls.time_limits import TimeLimits
from jupyter_sky.cluster.control import process_group
from jupyter_sky.cluster.errors import Failure, RankLost, not_sent
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.runs import progress_bars
from jupyter_sky.cluster.runs.run import rank_lost
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.sending.dispatch import dispatch, refresh
from jupyter_sky.cluster.runs.talk import Teller, tell_in_order
from jupyter_sky.cluster.runs.task import Message, RunNotice
from jupyter_sky.cluster.snapshot import ProgressView
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.error_report import ErrorReport, report
from jupyter_sky.transport.protocol.events import Display, Output, RankDone, RankExited, Told


class _Phase(Enum):
    OPEN = auto()
    CLOSING = auto()  # no call begins any more: another run goes on with those that wait
    CLOSED = auto()  # ranks were told that there are no more calls, or it is over


class CallRun:
    """A run in which all ranks serve calls; a `talk.Talk`.

    Parameters
    ----------
    scheduler
        The scheduler of the cluster.
    batch, calls
        The first batch, and its calls that are to be carried out.
    again
        Called with calls that need another run, because this one has ended without them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        batch: Batch,
        calls: Sequence[BatchedCall],
        again: Callable[[Sequence[BatchedCall]], None],
    ) -> None:
        self._scheduler = scheduler
        self._controller = scheduler.controller
        self._again = again
        self._serving, self._ahead = batch.serving, batch.ahead
        self._waiting: deque[BatchedCall] = deque(calls)
        self._assigned = Assignments()
        self._limits = TimeLimits(
            self._assigned, batch.serving, self._fail, scheduler.kill, self._fill
        )
        self._answered = 0
        self._names = JoinedUpdates(batch.update)
        self._order: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._phase = _Phase.OPEN
        self._begun = asyncio.Event()
        self._joining = asyncio.Lock()
        self._beginning: set[int] = set()
        self.run = scheduler.new_run(batch.task(self._controller.ranks), self)
        self.run.redirect(self._on_output, self._on_over)
        self._teller = Teller(self._controller, self.run.id)

    @property
    def progress(self) -> ProgressView | None:
        """How many of the calls are answered."""
        total = self._answered + len(self._assigned) + len(self._waiting)
        return progress_bars.of_calls(self._answered, total, time.monotonic() - self.run.began)

    @property
    def _is_closed(self) -> bool:
        return self._phase is _Phase.CLOSED

    def takes(self, batch: Batch) -> bool:
        """Return whether a batch can still join this run."""
        is_open = self._phase is _Phase.OPEN and not self.run.finished and not self.run.done
        return is_open and batch.serving == self._serving

    async def join(self, batch: Batch, calls: Sequence[BatchedCall]) -> None:
        """Add calls of another batch."""
        update = batch.update
        await self._begun.wait()
        try:
            if update.blobs:
                await broadcast.send(update.blobs, self._controller.connections)
            async with self._joining:  # calls do not overtake one whose names are pickled again
                await refresh(self._controller, [update])
        except Exception as error:  # of any kind: who waits for the calls has to go on
            self._controller.sync.lost(update)
            for call in calls:
                call.answer(None, trouble=not_sent(error, "the call"))
            return
        if self._is_closed:
            self._again(calls)
            return
        self._names.add(update)
        self._waiting.extend(calls)
        self._fill()

    def drop(self, batch: Batch) -> bool:
        """Cancel the calls of a batch; return whether the caller has to stop the whole run."""
        self._waiting = deque(call for call in self._waiting if call.batch is not batch)
        others = bool(self._waiting) or any(each.call.batch is not batch for each in self._assigned)
        self._fill()
        if not others and (self._assigned or not (self.run.sent or self.run.finished)):
            self._phase = _Phase.CLOSED
            return True
        for each in self._assigned:
            if each.call.batch is batch:
                self._stop(each)
        return False

    def withdraw(self, call: BatchedCall) -> None:
        """Stop a call, if a rank has it."""
        for each in self._assigned:
            if each.call == call:
                self._stop(each)

    def _stop(self, assigned: Assignment) -> None:
        """Have a rank stop a call, and ignore its answer."""
        if not assigned.is_settled:
            assigned.is_settled = True
            self._teller.tell(assigned.rank, Message("cancel", assigned.number))
            self._limits.stopped(assigned)

    # For the run (`talk.Talk`)

    def on_begun(self) -> None:
        """Give each rank its first calls."""
        self._begun.set()
        self._fill()

    def on_told(self, event: Told) -> None:
        """Pass on the answer to a call, and give its rank the next one."""
        assigned = self._assigned.find(event.number, event.rank)
        if assigned is None:
            # Unpickling the value would run whatever code its node put into it.
            return
        if event.kind == "ask":
            self._on_ask(event, assigned)
            return
        self._assigned.remove(assigned)
        self._limits.update(event.rank)
        self._names.answered(event.rank, event.number, are_missed=event.kind == "missed")
        if not assigned.is_settled:
            self._on_answer(event, assigned.call)
        self._fill()

    def _on_answer(self, event: Told, call: BatchedCall) -> None:
        rank = event.rank
        if event.kind == "missed":
            for update in self._names.joined:
                self._controller.sync.missed(update, rank, self._names.received(update, rank))
        if event.kind == "lost":
            why = event.reason or "it is not known why"
            text = f"the process of a call on rank {rank} has ended: {why}."
            self._lose(call, rank, report(RankLost, text))
        elif event.error is not None:
            self._fail(call, rank, event.error)
        else:
            self._answered += 1
            call.answer(rank, event.values)

    def _on_ask(self, event: Told, assigned: Assignment) -> None:
        """Ask the user's thread for items that a rank needs for its call."""
        call, rank, number = assigned.call, event.rank, event.number

        def on_trouble(trouble: SkyError) -> None:
            if assigned in self._assigned and not assigned.is_settled:
                assigned.is_settled = True
                self._answered += 1
                call.answer(rank, trouble=trouble)
                self._teller.tell(rank, Message("items_broken", number))

        def tell(message: Message, update: NamespaceUpdate | None) -> None:
            is_there = assigned in self._assigned
            if update:
                self._names.add(update, is_sent=is_there)
            if is_there:
                self._teller.tell(rank, replace(message, number=number), on_trouble)

        if not call.packed.is_fed or call.is_cancelled:  # its rank is told to stop it
            return
        if assigned.is_settled:
            tell(Message("items_broken"), None)
        else:
            call.batch.sink(Asked(call.position, number, rank, event.feed, event.count, tell))

    def on_rank_done(self, event: RankDone) -> None:
        """Handle that a rank takes no more calls, also if it was not told that there are none."""
        if self._is_closed:
            return
        if event.outcome == "interrupted":  # as are the others; or a call has interrupted its rank
            self._phase = _Phase.CLOSED
            self._scheduler.interrupt(self.run.id)
        elif error := event.error:
            for each in self._assigned.remove_rank(event.rank):
                self._fail(each.call, event.rank, error)
            self._fill(without=event.rank)

    def on_rank_exited(self, event: RankExited) -> bool:
        """Give the calls of a lost rank to others; a call that may not be retried fails."""
        error = rank_lost(event, self._controller.runtime_env.reforms)
        for each in reversed(self._assigned.remove_rank(event.rank)):
            if each.has_begun or each.is_lost_too_often():
                self._lose(each.call, event.rank, error)
            else:
                self._waiting.appendleft(each.call)
        self._fill(without=event.rank)
        if event.again and not self._is_closed:
            self._controller.spawn(self._take_back(event.rank))
        return True

    def _lose(self, call: BatchedCall, rank: int, error: ErrorReport) -> None:
        """Try a call again whose rank was lost, or fail it."""
        if call.may_be_tried_again():
            self._waiting.appendleft(call)
        else:
            self._fail(call, rank, error)

    def _fail(self, call: BatchedCall, rank: int, error: ErrorReport) -> None:
        self._answered += 1
        call.answer(rank, failure=Failure(rank, self._controller.host(rank), error))

    # Ranks that have a new process

    async def _take_back(self, rank: int) -> None:
        """Let a lost rank serve calls again, as soon as it has a new process."""
        controller = self._controller
        with contextlib.suppress(SkyError):  # the next run fails with the same error, and shows it
            while not self._is_closed:
                await controller.until(lambda: self._is_closed or controller.is_idle(rank))
                try:
                    await self._begin_on(rank)
                    return
                except SkyError:
                    if controller.is_idle(rank):
                        raise  # the rank is not being restarted: there is nothing to wait for

    async def _begin_on(self, rank: int) -> None:
        """Let one rank begin this run, which the others have begun before."""
        controller = self._controller
        if self._is_closed:
            return
        if not process_group.can_return(controller):
            self._end_for_group()
            return
        await process_group.let_return(controller, rank)
        if self._is_closed or self.run.finished:
            return
        self._beginning.add(rank)
        self.run.take_back(rank)  # no other run begins before this rank has its names, or has not
        try:
            await refresh(controller, self._names.all)
            if is_wanted := not (self._is_closed or self.run.finished):
                self._names.begin_again(rank)
                await dispatch(controller, self.run, (rank,))
        except BaseException:
            self._leave_out(rank)
            raise
        finally:
            self._beginning.discard(rank)
        if not is_wanted:
            self._leave_out(rank)
            return
        self._scheduler.monitor.on_rank_back(self.run.id, rank)
        if self._is_closed:
            await self._tell_end(rank)
        self._fill()

    def _leave_out(self, rank: int) -> None:
        """Note that a rank has not begun after all, and has nothing of what calls need."""
        for update in self._names.all:
            self._controller.sync.lost(update, (rank,))
        self.run.leave_out(rank)

    def _end_for_group(self) -> None:
        """End this run in favour of one in which all ranks take part, if that is worth the wait.

        The lost ranks need a process group, which only all ranks together can form. The others can
        do so when their present calls are finished, and idle until the longest one is.
        """
        there = len(self.run.waiting)
        lost = len(self.run.task.ranks) - there
        if len(self._waiting) * lost > there * (there + lost):
            self._phase = _Phase.CLOSING
            self._fill()

    # Who gets which call

    def _fill(self, without: int | None = None) -> None:
        """Give calls to ranks that are free; close the run when there are no calls left."""
        if not self._begun.is_set() or self._is_closed:
            return
        ranks = self.run.waiting - {without} - self._beginning
        loads = self._assigned.loads(ranks)
        slots = self._serving["concurrency"] + self._ahead
        while self._waiting and loads and self._phase is _Phase.OPEN:
            freest = min(loads, key=lambda rank: (loads[rank], rank))
            if loads[freest] >= slots:
                break
            call = self._waiting.popleft()
            if not call.is_cancelled:
                loads[freest] += 1
                self._give(call, freest)
        if not self._assigned and (self._phase is _Phase.CLOSING or not self._waiting):
            self._phase = _Phase.CLOSED
            for rank in ranks:
                self._controller.spawn(self._tell_end(rank))
        elif self._assigned and all(each.is_overdue for each in self._assigned):
            # Nobody waits for these, and those that wait for their ranks go to another run.
            self._phase = _Phase.CLOSED
            waiting, self._waiting = list(self._waiting), deque()
            self._scheduler.interrupt(self.run.id)
            self._again(waiting)

    def _give(self, call: BatchedCall, rank: int) -> None:
        assigned = self._assigned.add(call, rank)
        self._controller.spawn(self._tell_call(assigned))

    async def _tell_call(self, assigned: Assignment) -> None:
        call, rank, number = assigned.call, assigned.rank, assigned.number
        message = call.packed.message(number, *self._names.take(rank, number))
        fields = message.fields(self.run.id, rank)
        try:
            connection = self._controller.connection(rank)
            arrived = partial(self._limits.arrived, assigned)
            await tell_in_order(connection, self._order[rank], fields, message.blobs, arrived)
        except Exception as error:  # as above
            self._names.put_back(rank, number)
            if assigned in self._assigned:
                self._assigned.remove(assigned)
                self._limits.update(rank)
                if not assigned.is_settled:
                    self._answered += 1
                    call.answer(None, trouble=not_sent(error, "the call"))
                self._fill()

    async def _tell_end(self, rank: int) -> None:
        with contextlib.suppress(SkyError):  # a rank that is lost, too, has come to its end
            fields = Message("end").fields(self.run.id, rank)
            await tell_in_order(self._controller.connection(rank), self._order[rank], fields, {})

    # Output, and the end

    def _on_output(self, event: Output | Display | RunNotice) -> None:
        """Pass on notices and what a rank prints, to the batch of the call that printed it."""
        mine = []
        if not isinstance(event, RunNotice):
            mine = self._assigned.printing(event.call, event.rank)
        calls = chain((each.call for each in mine or self._assigned), self._waiting)
        for call in islice(calls, 1):  # where the rank has none, another that is not answered
            call.batch.sink(event)

    def _on_over(self) -> None:
        """Handle the end of the run: fail the calls that are left, or hand them to another run."""
        self._phase = _Phase.CLOSED
        self._begun.set()  # `join` may wait for it
        run, sync = self.run, self._controller.sync
        for update in self._names.joined:
            for rank, done in run.done.items():
                sync.ran(update, {rank: {}}, well=done.outcome == "ok")
                # Not all calls that should have brought it have reached the rank before its end.
                sync.missed(update, rank, done.arrived or ())
            if len(run.done) < len(run.task.ranks):
                sync.lost(update)
        calls = [each.call for each in self._assigned.clear()] + list(self._waiting)
        self._waiting.clear()
        calls = [call for call in calls if not call.is_cancelled]
        self._names.let_go(but=[call.batch.update for call in calls])
        if calls and not (run.stopped or run.failed):
            self._again(calls)
            return
        trouble = run.trouble
        if not run.failures and trouble is None:
            trouble = SkyError("the calls were stopped.")
        for call in calls:
            failure = None if trouble else run.failures[0]
            call.answer(None, failure=failure, trouble=trouble)
