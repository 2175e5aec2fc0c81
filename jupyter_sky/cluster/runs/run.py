"""A run: one execution of a cell or a call on the ranks of a cluster."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_sky.cluster.errors import Failure, Interrupted, RankLost, TimedOut, remote_error
from jupyter_sky.cluster.runs.task import Notice, Sending, Task
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.events import Display, Event, Output, RankDone, RankExited

if TYPE_CHECKING:
    from jupyter_sky.cluster.runs.scheduler import Scheduler

STOPPED_WITHIN = 0.75
"""Seconds after Stop when the person has control again, whatever the ranks do."""

_SLICE = 0.5


Sink = Callable[[Output | Display], object]


class Run:
    """A run: ``follow()`` it, then ask for its ``values()``."""

    def __init__(self, scheduler: Scheduler, task: Task, identity: str | None = None) -> None:
        self.id = identity or uuid.uuid4().hex[:12]
        self.task = task
        self.started = time.monotonic()
        self._scheduler = scheduler
        self._begun = False
        self._events: queue.SimpleQueue[Output | Display | Sending | Notice | None]
        self._events = queue.SimpleQueue()
        self._waiting = set(task.ranks)
        self._done: dict[int, RankDone] = {}
        self._failures: list[Failure] = []
        self._trouble: SkyError | None = None
        self._stopped_by_person = False
        self._time_limit: float | None = None
        self._sink: Sink | None = None
        self._on_finish: Callable[[], None] | None = None
        self.to_send = 0
        self._gone = 0
        self._on_sending: Callable[[int, int], object] = lambda sent, total: None
        self._on_notice: Callable[[str], object] = lambda text: None
        self.left = threading.Event()
        self.over = asyncio.Event()
        self.sent = False

    # For the person's thread

    def begin(self) -> None:
        """Send the run on its way, unless it is.

        Who follows it does so, where an interrupt that comes in the middle of it stops the run.
        Started earlier, it would go on with nobody to stop it.
        """
        if not self._begun:
            self._begun = True
            self._scheduler.controller.sync.sent(self.task.update)
            event_loop.call(self._scheduler.start, self)

    def listen(self, show: Sink, over: Callable[[], None], timeout: float | None = None) -> None:
        """Have the run followed in the background instead, and wait until its data has left.

        Parameters
        ----------
        show
            Called for what ranks print and display, in the background thread.
        over
            Called there when the run is over.
        timeout
            Seconds from now after which the run is stopped.
        """
        self._on_finish = over

        def take_over() -> None:
            self._sink = show
            while not self._events.empty():
                event = self._events.get_nowait()
                if isinstance(event, Output | Display):
                    show(event)
            if self.finished:
                over()
            elif timeout is not None:
                asyncio.get_running_loop().call_later(timeout, self._time_over, timeout)

        try:
            self.begin()
            event_loop.call(take_over)
            while not self.left.wait(_SLICE):
                pass
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the run and return at once."""
        self._stopped_by_person = True
        event_loop.call(self._scheduler.give_up, self)

    def follow(
        self,
        show: Sink = lambda event: None,
        timeout: float | None = None,
        sending: Callable[[int, int], object] = lambda sent, total: None,
        notice: Callable[[str], object] = lambda text: None,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """Give what ranks print and display to ``show``, until the run is over.

        Ctrl-C is heard wherever it comes, also inside of ``show``.

        Parameters
        ----------
        show
            Called in this thread.
        timeout
            Seconds after which the run is stopped; by default it may take as long as it does.
        sending
            Called in this thread with the bytes of data that have left so far, and of all.
        notice
            Called in this thread with what else the person should know.
        is_leaving
            Called after Ctrl-C: whether it is this process that ends, and the run that goes on.

        Raises
        ------
        Interrupted
            When Ctrl-C stopped the run; every rank was told to stop.
        TimedOut
            When the time was over; every rank was told to stop.
        """
        self._on_sending = sending
        self._on_notice = notice
        try:
            self.begin()
            for event in self._queued(timeout and self.started + timeout):
                show(event)
            if not self.finished:
                self._time_limit = timeout
                self._stop(show)
                self._raise_if_stopped()
        except KeyboardInterrupt:
            if _answers(is_leaving):
                raise Interrupted("this kernel ends, and the run goes on.") from None
            self._stopped_by_person = True
            self._stop(show)
            self._raise_if_stopped()

    @property
    def nothing_waits(self) -> bool:
        """Whether everything that came so far was shown."""
        return self._events.empty()

    def values(self) -> dict[int, Any]:
        """Return what was asked for, unpickled, by rank; raise what the ranks raised.

        Raises
        ------
        RemoteError
            Also of the original type.
        ClusterLost
            When the cluster is gone.
        """
        self.check()
        packed = {rank: done.values for rank, done in self._done.items() if done.values}
        controller = self._scheduler.controller
        learn = controller.sync.learn
        found = {}
        for rank in sorted(packed):
            try:
                found[rank] = controller.connection(rank).load(packed[rank], learn)
            except SkyError:
                raise
            except Exception as error:
                what = ", ".join(self.task.values.get(rank, ())) or "the returned value"
                raise SkyError(
                    f"{what} of rank {rank} came back, but cannot be made here: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return found

    def check(self) -> None:
        """Raise what kept the run from its end, as `values` does, and fetch nothing."""
        self._raise_if_stopped()
        if self._trouble:
            raise self._trouble
        if self._failures:
            raise remote_error(self._failures)

    @property
    def bound(self) -> dict[int, frozenset[str]]:
        """Of the names that were asked for, or that a cell can bind, those that each rank has."""
        return {rank: frozenset(done.bound) for rank, done in self._done.items()}

    def _raise_if_stopped(self) -> None:
        if self._stopped_by_person:
            raise Interrupted(self._what_stopped()) from None
        if self._time_limit is not None:
            raise TimedOut(
                f"the time of {self._time_limit:g} s is over: {self._what_stopped()}"
            ) from None

    def _queued(self, until: float | None = None) -> Iterator[Output | Display]:
        while True:
            left = _SLICE if until is None else min(_SLICE, until - time.monotonic())
            if left <= 0:
                return
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                continue
            if event is None:
                return
            if isinstance(event, Sending):
                self._on_sending(event.sent, event.total)
            elif isinstance(event, Notice):
                self._on_notice(event.text)
            else:
                yield event

    def _stop(self, show: Sink) -> None:
        event_loop.call(self._scheduler.give_up, self)
        try:
            # What ranks say to it is heard too.
            for event in self._queued(time.monotonic() + STOPPED_WITHIN):
                show(event)
        except KeyboardInterrupt:
            # A second Stop means now.
            event_loop.call(self._scheduler.kill, self)

    def _what_stopped(self) -> str:
        seconds = time.monotonic() - self.started
        text = f"{format_ranks(self.task.ranks)} stopped after {seconds:.1f} s"
        if self._waiting and not self.finished:
            limit = self._scheduler.controller.timeouts.stop
            text += (
                f"; {format_ranks(list(self._waiting))} did not react yet: what has not after "
                f"{limit:g} s is ended, which loses what is in memory there"
            )
        return text + "."

    @property
    def seconds(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self.started

    # For the background thread

    def handle(self, event: Event) -> None:
        """Take note of an event that belongs to this run."""
        match event:
            case Output() | Display():
                if self._sink:
                    self._sink(event)
                else:
                    self._events.put(event)
            case RankDone(rank=rank, outcome=outcome, error=error):
                self._done[rank] = event
                if outcome == "error" and error is not None:
                    self._fail(rank, error)
                elif outcome == "interrupted" and not self._failures and not self.stopped:
                    # Not here, but by `%sky interrupt`, the panel or another kernel.
                    self._stopped_by_person = True
                self._settle(rank)
            case RankExited(rank=rank, reason=reason, tail=tail):
                if not self.stopped:
                    self._fail(rank, _lost(rank, reason, tail))
                self._settle(rank)

    def sending(self, count: int) -> None:
        """Take note of bytes of its data that have left."""
        before, self._gone = self._gone, self._gone + count
        if not self._sink and 100 * before // self.to_send < 100 * self._gone // self.to_send:
            self._events.put(Sending(self._gone, self.to_send))

    def notice(self, text: str) -> None:
        """Have the person told something."""
        if not self._sink:
            self._events.put(Notice(text))

    def give_up(self, trouble: SkyError | None = None) -> None:
        """End the run because the cluster cannot go on with it, or what it lost is known."""
        self._trouble = self._trouble or trouble
        self._finish()

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that have not come to the end of it."""
        return frozenset(self._waiting)

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self.over.is_set()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped, by the person or because its time was over."""
        return self._stopped_by_person or self._time_limit is not None

    @property
    def in_background(self) -> bool:
        """Whether the kernel does not wait for it."""
        return self._on_finish is not None

    @property
    def failed(self) -> bool:
        """Whether some rank failed, or the cluster."""
        return bool(self._failures or self._trouble)

    @property
    def trouble(self) -> SkyError | None:
        """Why the cluster could not go on with it."""
        return self._trouble

    def _time_over(self, limit: float) -> None:
        if not self.finished:
            self._time_limit = limit
            self._scheduler.stop(self.id)

    def _fail(self, rank: int, error: Mapping[str, Any]) -> None:
        self._failures.append(Failure(rank, self._scheduler.controller.node(rank).host, error))

    def _settle(self, rank: int) -> None:
        self._waiting.discard(rank)
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self.over.set()
            self._events.put(None)
            if self._on_finish and self._sink:
                self._on_finish()
            self._scheduler.over(self)


def _answers(question: Callable[[], bool]) -> bool:
    """Ask something; a second Ctrl-C is a no."""
    try:
        return question()
    except KeyboardInterrupt:
        return False


def _lost(rank: int, reason: str, tail: str) -> dict[str, Any]:
    said = f" Its last lines:\n{tail.rstrip()}" if tail.strip() else ""
    text = (
        f"rank {rank} is lost: {reason}. It starts anew with an empty namespace; "
        f"the other ranks keep theirs.{said}"
    )
    return {
        "type": RankLost.__qualname__,
        "module": RankLost.__module__,
        "bases": [(RankLost.__module__, RankLost.__qualname__)],
        "text": text,
        "args": [text],
        "attributes": {},
        "traceback": [f"RankLost: {text}"],
    }
