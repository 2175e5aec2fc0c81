"""A run in which all ranks serve calls: each call goes to the rank that is the least busy.

It ends when there is no call left. All of this happens in the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from jupyter_sky.cluster.control import process_group
from jupyter_sky.cluster.errors import Failure, RankLost
from jupyter_sky.cluster.namespace.joined_updates import JoinedUpdates
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.runs import progress_bars
from jupyter_sky.cluster.runs.dispatch import dispatch, refresh
from jupyter_sky.cluster.runs.run import rank_lost
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.talk import Teller, fields_of, tell_in_order
from jupyter_sky.cluster.runs.task import Answer, Asked, Batch, BatchedCall, Message
from jupyter_sky.cluster.snapshot import ProgressView
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.error_report import ErrorReport, report
from jupyter_sky.transport.protocol.events import Display, Output, RankDone, RankExited, Told

_GIVE_UP_AFTER = 1.0
"""Seconds from a call's time-out to its answer, if its rank has other calls and is not killed."""

_KILL_AFTER = 10.0
"""Seconds from a call's time-out, or its cancellation, until a rank that ignores it is killed."""


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
        self._is_alone = batch.serving["concurrency"] == 1 and not batch.ahead
        self._waiting: deque[BatchedCall] = deque(calls)
        self._given: dict[int, tuple[BatchedCall, int]] = {}  # by number: the call, and its rank
        self._numbers = self._answered = 0
        self._names = JoinedUpdates(batch.update)
        self._order: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._late: set[int] = set()
        self._is_closed = self._is_ending = False
        self._begun = asyncio.Event()
        self._beginning: set[int] = set()
        self.run = scheduler.new_run(batch.task(self._controller.ranks), self)
        self.run.redirect(self._on_output, self._on_over)
        self._teller = Teller(self._controller, self.run.id)

    @property
    def progress(self) -> ProgressView | None:
        """How many of the calls are answered."""
        total = self._answered + len(self._given) + len(self._waiting)
        return progress_bars.of_calls(self._answered, total, time.monotonic() - self.run.began)

    def takes(self, batch: Batch) -> bool:
        """Return whether a batch can still join this run."""
        is_ending = self._is_closed or self._is_ending or self.run.finished or self.run.done
        return not is_ending and batch.serving == self._serving

    async def join(self, batch: Batch, calls: Sequence[BatchedCall]) -> None:
        """Add calls of another batch."""
        update = batch.update
        await self._begun.wait()
        try:
            if update.blobs:
                await broadcast.send(update.blobs, self._controller.connections)
            await refresh(self._controller, [update])
        except SkyError as trouble:
            self._controller.sync.lost(update)
            for _, number in calls:
                batch.sink(Answer(number, None, trouble=trouble))
            return
        if self._is_closed:
            self._again(calls)
            return
        self._names.add(update)
        self._waiting.extend(calls)
        self._fill()

    def drop(self, batch: Batch) -> bool:
        """Cancel the calls of a batch; return whether the caller has to stop the whole run."""
        self._waiting = deque(call for call in self._waiting if call[0] is not batch)
        busy = [call for call, _ in self._given.values()]
        others = bool(self._waiting) or any(each is not batch for each, _ in busy)
        self._fill()
        if busy and not others:
            self._is_closed = True
            return True
        for key, (call, _) in self._given.items():
            if call[0] is batch:
                self._stop(key)
        return False

    def withdraw(self, call: BatchedCall) -> None:
        """Stop a call, if a rank has it."""
        for key, (each, _) in self._given.items():
            if each == call:
                self._stop(key)

    def _stop(self, key: int) -> None:
        """Have a rank stop a call, and ignore its answer."""
        if key not in self._late:
            self._late.add(key)
            self._teller.tell(self._given[key][1], "cancel", key)
            if self._is_alone:
                asyncio.get_running_loop().call_later(_KILL_AFTER, self._kill, key)

    # For the run (`talk.Talk`)

    def on_begun(self) -> None:
        """Give each rank its first calls."""
        self._begun.set()
        self._fill()

    def on_told(self, event: Told) -> None:
        """Pass on the answer to a call, and give its rank the next one."""
        call, rank = self._given.get(event.number, (None, None))
        if call is None or rank != event.rank:
            # Unpickling the value would run whatever code its node put into it.
            return
        if event.kind == "ask":
            self._on_ask(event, call)
            return
        del self._given[event.number]
        self._names.answered(rank, event.number, are_missed=event.kind == "missed")
        batch, number = call
        if event.number in self._late:  # it was answered already, or is not wanted
            self._fill()
            return
        if event.kind == "missed":
            for update in self._names.joined:
                self._controller.sync.missed(update, rank, self._names.received(update, rank))
        if event.kind == "lost":
            text = f"the process of a call on rank {rank} has ended."
            self._lose(call, rank, report(RankLost, text))
        elif event.error is not None:
            failure = Failure(rank, self._controller.host(rank), event.error)
            self._answer(batch, Answer(number, rank, failure=failure))
        else:
            self._answer(batch, Answer(number, rank, event.values))
        self._fill()

    def _on_ask(self, event: Told, call: BatchedCall) -> None:
        """Ask the user's thread for items that a rank needs for its call."""
        (batch, number), rank, key = call, event.rank, event.number

        def on_trouble(trouble: SkyError) -> None:
            if key in self._given and key not in self._late:
                self._late.add(key)
                self._answer(batch, Answer(number, rank, trouble=trouble))
                self._teller.tell(rank, "items_broken", key)

        def tell(
            kind: str, feed: int, message: Message | None, update: NamespaceUpdate | None
        ) -> None:
            if update:
                self._names.add(update, is_sent=key in self._given)
            if key in self._given:
                self._teller.tell(rank, kind, key, feed, message, on_trouble)

        if not batch.calls[number].is_fed:
            return
        if number in batch.cancelled or key in self._late:
            tell("items_broken", 0, None, None)
        else:
            batch.sink(Asked(number, key, rank, event.feed, event.count, tell))

    def on_rank_done(self, event: RankDone) -> None:
        """Handle that a rank takes no more calls, also if it was not told that there are none."""
        if self._is_closed:
            return
        if event.outcome == "interrupted":  # as are the others; or a call has interrupted its rank
            self._is_closed = True
            self._scheduler.interrupt(self.run.id)
        elif error := event.error:
            for batch, number in self._take_from(event.rank):
                failure = Failure(event.rank, self._controller.host(event.rank), error)
                self._answer(batch, Answer(number, event.rank, failure=failure))
            self._fill(without=event.rank)

    def on_rank_exited(self, event: RankExited) -> bool:
        """Give the calls of a lost rank to others; a call that may not be retried fails."""
        for call in self._take_from(event.rank):
            error = rank_lost(event, self._controller.runtime_env.reforms)
            self._lose(call, event.rank, error)
        self._fill(without=event.rank)
        if event.again and not self._is_closed:
            self._controller.spawn(self._take_back(event.rank))
        return True

    def _take_from(self, rank: int) -> list[BatchedCall]:
        """Take the calls that a rank has from it; return those without an answer."""
        keys = [key for key, (_, at) in self._given.items() if at == rank]
        taken = {key: self._given.pop(key)[0] for key in keys}
        return [call for key, call in taken.items() if key not in self._late]

    def _lose(self, call: BatchedCall, rank: int, error: ErrorReport) -> None:
        batch, number = call
        batch.tries[number] += 1
        if batch.tries[number] <= batch.calls[number].retries and number not in batch.spent:
            self._waiting.appendleft(call)
            return
        failure = Failure(rank, self._controller.host(rank), error)
        self._answer(batch, Answer(number, rank, failure=failure))

    def _answer(self, batch: Batch, answer: Answer) -> None:
        self._answered += 1
        batch.sink(answer)

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
        await refresh(controller, self._names.all)
        if self._is_closed or self.run.finished:
            return
        self._names.begin_again(rank)
        self.run.take_back(rank)
        self._beginning.add(rank)
        try:
            await dispatch(controller, self.run, (rank,))
        except SkyError:
            self.run.leave_out(rank)
            raise
        finally:
            self._beginning.discard(rank)
        self._scheduler.monitor.on_rank_back(self.run.id, rank)
        if self._is_closed:
            await self._tell_end(rank)
        self._fill()

    def _end_for_group(self) -> None:
        """End this run in favour of one in which all ranks take part, if that is worth the wait.

        The lost ranks need a process group, which only all ranks together can form. The others can
        do so when their present calls are finished, and idle until the longest one is.
        """
        there = len(self.run.waiting)
        lost = len(self.run.task.ranks) - there
        if len(self._waiting) * lost > there * (there + lost):
            self._is_ending = True
            self._fill()

    # Who gets which call

    def _fill(self, without: int | None = None) -> None:
        """Give calls to ranks that are free; close the run when there are no calls left."""
        if not self._begun.is_set() or self._is_closed:
            return
        ranks = self.run.waiting - {without} - self._beginning
        busy = dict.fromkeys(ranks, 0)
        for _, rank in self._given.values():
            if rank in busy:
                busy[rank] += 1
        slots = self._serving["concurrency"] + self._ahead
        while self._waiting and busy and not self._is_ending:
            freest = min(busy, key=lambda rank: (busy[rank], rank))
            if busy[freest] >= slots:
                return
            call = self._waiting.popleft()
            if call[1] not in call[0].cancelled:
                busy[freest] += 1
                self._give(call, freest)
        if not self._given and (self._is_ending or not self._waiting):
            self._is_closed = True
            for rank in ranks:
                self._controller.spawn(self._tell_end(rank))

    def _give(self, call: BatchedCall, rank: int) -> None:
        self._numbers += 1
        key = self._numbers
        self._given[key] = (call, rank)
        self._controller.spawn(self._tell_call(rank, key, call))
        if timeout := call[0].calls[call[1]].timeout:
            loop = asyncio.get_running_loop()
            if self._is_alone:
                loop.call_later(timeout + _KILL_AFTER, self._kill, key)
            else:
                loop.call_later(timeout + _GIVE_UP_AFTER, self._give_up, key)

    def _kill(self, key: int) -> None:
        """Kill a rank whose call has not ended in time."""
        if key in self._given:
            self._give_up(key)
            self._scheduler.kill([self._given[key][1]])

    def _give_up(self, key: int) -> None:
        """Answer a call with a `TimeoutError`; its rank may go on with it for a while."""
        if key not in self._given or key in self._late:
            return
        self._late.add(key)
        (batch, number), rank = self._given[key]
        timeout = batch.calls[number].timeout
        error = report(TimeoutError, f"it took longer than its {timeout:g} s")
        failure = Failure(rank, self._controller.host(rank), error)
        self._answer(batch, Answer(number, rank, failure=failure))

    async def _tell_call(self, rank: int, key: int, call: BatchedCall) -> None:
        batch, number = call
        packed = batch.calls[number]
        message = packed.message(*self._names.take(rank, key, batch.update.names))
        fields = fields_of(self.run.id, rank, "call", key, 0, message, packed.timeout)
        try:
            connection = self._controller.connection(rank)
            await tell_in_order(connection, self._order[rank], fields, message.blobs)
        except SkyError as trouble:
            self._names.put_back(rank, key)
            if self._given.pop(key, None):
                if key not in self._late:
                    self._answer(batch, Answer(number, None, trouble=trouble))
                self._fill()

    async def _tell_end(self, rank: int) -> None:
        with contextlib.suppress(SkyError):  # a rank that is lost, too, has come to its end
            fields = fields_of(self.run.id, rank, "end", 0)
            await tell_in_order(self._controller.connection(rank), self._order[rank], fields, {})

    # Output, and the end

    def _on_output(self, event: Output | Display) -> None:
        """Pass on what a rank prints, to the batch of the call that printed it."""
        call, rank = self._given.get(event.call, (None, None))
        if rank != event.rank:  # printed outside of a call: the rank's oldest one gets it
            call = next((each for each, at in self._given.values() if at == event.rank), None)
        if call:
            call[0].sink(event)

    def _on_over(self) -> None:
        """Handle the end of the run: fail the calls that are left, or hand them to another run."""
        self._is_closed = True
        self._begun.set()  # `join` may wait for it
        run, sync = self.run, self._controller.sync
        for update in self._names.joined:
            for rank, done in run.done.items():
                sync.ran(update, rank, {}, well=done.outcome == "ok")
                # Not all calls that should have brought it have reached the rank before its end.
                sync.missed(update, rank, done.arrived or ())
            if len(run.done) < len(run.task.ranks):
                sync.lost(update)
        given = [call for key, (call, _) in self._given.items() if key not in self._late]
        calls = given + list(self._waiting)
        self._given.clear()
        self._waiting.clear()
        calls = [call for call in calls if call[1] not in call[0].cancelled]
        self._names.let_go(but=[batch.update for batch, _ in calls])
        if calls and not (run.stopped or run.failed):
            self._again(calls)
            return
        trouble = run.trouble
        if not run.failures and trouble is None:
            trouble = SkyError("the calls were stopped.")
        for batch, number in calls:
            failure = None if trouble else run.failures[0]
            batch.sink(Answer(number, None, failure=failure, trouble=trouble))
