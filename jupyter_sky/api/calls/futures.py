"""Calls whose results are asked for later: ``call > pool`` returns a future."""

from __future__ import annotations

import concurrent.futures
import contextvars
import queue
import threading
from typing import Any, TypeVar

from jupyter_sky.api.calls.batches import Batches, Event
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.api.future import CallFuture
from jupyter_sky.cluster.runs.task import Answer, Batch

R = TypeVar("R")


class Futures:
    """Carries out single calls, and gives their results to futures, in a thread of its own.

    Parameters
    ----------
    batches
        What carries out the calls.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._events: queue.SimpleQueue[tuple[_Submitted, Event] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, pending: PendingCompute[R]) -> CallFuture[R]:
        """Carry out a call on a rank that is free."""
        submitted = _Submitted(pending, CallFuture())
        batch = self._batches.pack([pending], lambda event: self._events.put((submitted, event)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="sky-futures", daemon=True)
            self._thread.start()
        submitted.future.add_done_callback(lambda done: self._on_done(batch, done))
        self._batches.submit(batch)
        return submitted.future

    def close(self) -> None:
        """End the thread; a future that has no result by then gets none."""
        self._events.put(None)

    def _on_done(self, batch: Batch, future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled():
            self._batches.withdraw(batch)

    def _serve(self) -> None:
        while entry := self._events.get():
            submitted, event = entry
            if not isinstance(event, Answer):
                submitted.context.run(self._batches.write, event)
                continue
            future = submitted.future
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = self._batches.value(event, [submitted.pending])
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)


class _Submitted:
    def __init__(self, pending: PendingCompute[Any], future: CallFuture[Any]) -> None:
        self.pending = pending
        self.future = future
        # It says in which cell this is: what is printed goes there, whichever runs by then.
        self.context = contextvars.copy_context()
