"""Calls whose results are needed later: ``call > pool`` returns a future."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from typing import Any, TypeVar

from jupyter_sky.api.calls.batches import Batches, Event
from jupyter_sky.api.calls.feeds import CallFeeds
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.api.display.wording import reword
from jupyter_sky.api.future import CallFuture
from jupyter_sky.cluster.calls.batch import Asked, Batch, CallResult
from jupyter_sky.cluster.runs.task import RunNotice
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.events import Display, Output

R = TypeVar("R")


class Futures:
    """Carries out single calls and sets the results of their futures, in a thread of its own.

    A call with iterators has another thread, which waits for their items.

    Parameters
    ----------
    batches
        Carries out the calls.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._events: queue.SimpleQueue[tuple[_Submitted, Event | BaseException] | None]
        self._events = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._is_over = False
        self._waiting: set[_Submitted] = set()
        self._thread: threading.Thread | None = None

    def submit(self, pending: PendingCompute[R]) -> CallFuture[R]:
        """Carry out a call on a free rank.

        Raises
        ------
        SkyError
            If the pool ends meanwhile.
        """
        submitted = _Submitted(pending, CallFuture(self._serve_until_done))

        def sink(event: Event) -> None:
            if isinstance(event, Asked):
                submitted.asked.put(event)
            else:
                self._events.put((submitted, event))

        batch, feeds = self._batches.pack([pending], sink)
        submitted.batch = batch
        with self._guard:
            if self._is_over:
                raise _pool_ended()
            self._waiting.add(submitted)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="sky-futures", daemon=True)
                self._thread.start()
        submitted.future.add_done_callback(lambda done: self._on_done(submitted))
        if feeds.keeps_ranks:
            feeding = (submitted, batch, feeds)
            threading.Thread(target=self._feed, args=feeding, name="sky-feed", daemon=True).start()
        self._batches.submit(batch)
        return submitted.future

    def close(self) -> None:
        """End the thread; futures without a result get an error that says why."""
        with self._guard:
            self._is_over = True
            for submitted in self._waiting:
                self._events.put((submitted, _pool_ended()))
            self._events.put(None)

    def _on_done(self, submitted: _Submitted) -> None:
        with self._guard:
            self._waiting.discard(submitted)
        submitted.asked.put(None)
        if submitted.future.cancelled() and submitted.batch:
            self._batches.withdraw(submitted.batch)
            self._settle(submitted)
        # The user may keep the future for long, and its arguments may be large.
        submitted.batch = submitted.pending = None

    def _settle(self, submitted: _Submitted) -> bool:
        """Make a future uncancellable; return whether it was not cancelled before.

        Functions that wait for several futures at once learn of a cancellation only from this.
        """
        with self._guard:
            if submitted.is_settled:
                return False
            submitted.is_settled = True
            return submitted.future.set_running_or_notify_cancel()

    def _feed(self, submitted: _Submitted, batch: Batch, feeds: CallFeeds) -> None:
        feeds.thread = threading.get_ident()
        self._batches.streams.add(feeds)
        context = submitted.context.copy()  # which two threads may not enter at once
        try:
            while asked := submitted.asked.get():
                if left := context.run(feeds.on_ask, asked):
                    submitted.asked.put(left)
        except BaseException as error:  # an error of the user's iterator
            self._events.put((submitted, error))
            self._batches.cancel(batch)
        finally:
            feeds.close()

    def _serve(self) -> None:
        while entry := self._events.get():
            try:
                self._handle(*entry)
            except Exception:  # as where the user has set the result of a future
                logging.getLogger(__name__).exception("the future of a call could not be set")
            del entry  # while it waits for the next one

    def _serve_until_done(self, future: CallFuture[Any], timeout: float | None) -> float | None:
        """Go on setting results where this thread waits for one, in a done callback of the user's.

        Returns
        -------
        float or None
            The seconds that are left to wait.
        """
        if threading.current_thread() is not self._thread:
            return timeout
        end = None if timeout is None else time.monotonic() + timeout
        while not future.done():
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                entry = self._events.get(timeout=left)
            except queue.Empty:
                return 0.0
            if entry is None:
                self._events.put(None)  # the pool has ended, which all futures know
                break
            self._handle(*entry)
        return timeout

    def _handle(self, submitted: _Submitted, event: Event | BaseException) -> None:
        future = submitted.future
        if isinstance(event, Output | Display | RunNotice):
            try:
                submitted.context.run(self._batches.write, event)
                return
            except Exception as error:  # nobody reads the output: other futures are served still
                if submitted.batch:
                    self._batches.withdraw(submitted.batch)
                event = error
        if not self._settle(submitted):
            return
        if isinstance(event, BaseException):
            reword(event)
            future.set_exception(event)
            return
        assert isinstance(event, CallResult)
        assert submitted.pending is not None
        try:
            value = self._batches.value(event, [submitted.pending])
        except BaseException as error:
            reword(error)
            future.set_exception(error)
        else:
            future.set_result(value)


class _Submitted:
    def __init__(self, pending: PendingCompute[Any], future: CallFuture[Any]) -> None:
        self.pending: PendingCompute[Any] | None = pending
        self.batch: Batch | None = None
        self.future = future
        self.is_settled = False
        self.asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        # It identifies the cell: output goes there, whichever cell is running by then.
        self.context = contextvars.copy_context()


def _pool_ended() -> SkyError:
    return SkyError(
        "the pool ended before this call was done: ask for its `result()` inside the `with` block."
    )
