"""Calls that ranks carry out one by one, submitted in batches.

Calls that are submitted while others are not finished share their run (`call_run`). It ends with
the last call, and the next batch begins another run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from jupyter_sky.cluster.calls.batch import Asked, Batch, BatchedCall
from jupyter_sky.cluster.calls.call_run import CallRun
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.task import Message
from jupyter_sky.cluster.runs.values import load
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.blobs.packed import Packed


class Calls:
    """The calls of a cluster, for the user's thread.

    Parameters
    ----------
    scheduler
        The scheduler of the cluster.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._controller = scheduler.controller
        self._queue = _CallQueue(scheduler)

    def submit(self, batch: Batch) -> None:
        """Carry out calls, each on whichever rank is free; the batch's sink gets the answers."""
        self._controller.sync.sent(batch.update)
        event_loop.call(self._queue.submit, batch)

    def cancel(self, batch: Batch) -> None:
        """Let no further call of a batch begin, and stop those that run."""
        event_loop.call(self._queue.cancel, batch)

    def withdraw(self, batch: Batch, number: int) -> None:
        """Cancel one call of a batch: it does not begin, or is stopped."""
        event_loop.call(self._queue.withdraw, batch, number)

    def tell(self, asked: Asked, message: Message, update: NamespaceUpdate | None = None) -> None:
        """Answer a rank that has asked for items of an iterator."""
        event_loop.call(asked.tell, message, update)

    def load(self, rank: int, packed: Packed) -> Any:
        """Return the value that a rank was asked for, and has packed."""
        learn = partial(self._controller.sync.learn, are_named=False)
        return load(packed, self._controller.connection(rank), learn)


class _CallQueue:
    """Adds batches to the run that is open, or begins one.

    Parameters
    ----------
    scheduler
        The scheduler of the cluster.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._open: CallRun | None = None
        self._runs: list[CallRun] = []  # the open one, and those that end

    def submit(self, batch: Batch) -> None:
        """Carry out the calls of a batch."""
        self._submit(batch, [BatchedCall(batch, place) for place in range(len(batch.calls))])

    def cancel(self, batch: Batch) -> None:
        """Let no further call of a batch begin, and stop those that run."""
        batch.cancelled.update(range(len(batch.calls)))
        self._drop(batch, self._runs)

    def withdraw(self, batch: Batch, number: int) -> None:
        """Cancel one call of a batch: it does not begin, or is stopped."""
        batch.cancelled.add(number)
        if len(batch.cancelled) == len(batch.calls):
            # These wait for nothing.
            self._drop(batch, [each for each in self._runs if not each.run.sent])
        for current in self._runs:
            current.withdraw(BatchedCall(batch, number))

    def _drop(self, batch: Batch, runs: Iterable[CallRun]) -> None:
        for current in runs:
            if current.drop(batch):
                self._scheduler.interrupt(current.run.id)

    def _submit(self, batch: Batch, calls: Sequence[BatchedCall]) -> None:
        current = self._open
        # If another run waits for its turn, these calls came later: it goes first.
        if current and current.takes(batch) and not self._scheduler.has_waiting(current.run):
            controller = self._scheduler.controller
            controller.sync.not_unbound(batch.update)  # which the run that it joins has no part for
            controller.spawn(current.join(batch, calls))
            return
        self._open = CallRun(self._scheduler, batch, calls, self._again)
        self._runs = [each for each in self._runs if not each.run.finished] + [self._open]
        self._scheduler.start(self._open.run)

    def _again(self, calls: Sequence[BatchedCall]) -> None:
        """Begin another run with calls that theirs could not carry out."""
        for batch in dict.fromkeys(call.batch for call in calls):
            batch.update = batch.update.for_another_run()  # a rank may be lost again, and need it
            self._scheduler.controller.sync.sent(batch.update)
            self._submit(batch, [call for call in calls if call.batch is batch])
