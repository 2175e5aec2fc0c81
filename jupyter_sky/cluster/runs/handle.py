"""The handle of a run, for the user's thread: begin it, follow it, stop it, get its values.

The thread waits for the run's queue in short slices, so that Ctrl-C always reaches it. Here only
flags of the run are set; everything else is done in the background loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from jupyter_sky.cluster.debugging.answers import PromptAnswers
from jupyter_sky.cluster.errors import Interrupted, heard_interrupts, remote_error
from jupyter_sky.cluster.loss import Loss, find_loss
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.run import Callbacks, Run, Show, Sink, say
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.cluster.runs.talk import Teller
from jupyter_sky.cluster.runs.task import HangNotice, Message, RunNotice, Task
from jupyter_sky.cluster.runs.values import load_all
from jupyter_sky.cluster.stopped import raise_if_asked_to_stop, raise_if_stopped, seen_before
from jupyter_sky.errors import SkyError
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.events import Display, Output, Prompted, RankDone, Told
from jupyter_sky.transport.tasks import Flag

STOPPED_WITHIN = 0.75
"""Seconds after Stop when the user has control again, whatever the ranks do."""

_LEFT_WITHIN = 1.0  # seconds that generators on ranks get to end by themselves
_SLICE = 0.5  # seconds
_SHORT_SLICE = 0.05


class RunHandle:
    """A run of this notebook: ``follow()`` it, then ask for its ``values()``.

    Parameters
    ----------
    run
        The run.
    scheduler
        The scheduler of its cluster.

    Attributes
    ----------
    answers
        Sends the user's answers to ranks that wait at a prompt.
    """

    def __init__(self, run: Run, scheduler: Scheduler) -> None:
        self._run = run
        self._scheduler = scheduler
        self._begun = False
        self._ended_at_once: frozenset[int] = frozenset()
        self._notice: Callable[[str], object] = lambda text: None
        self._teller = Teller(scheduler.controller, run.id)
        self.answers = PromptAnswers(scheduler.controller, run.id, run.prompts)

    def begin(self) -> None:
        """Start the run, unless it was started.

        `follow` does it inside its ``try``, so that Ctrl-C stops the run from the first moment.
        """
        if not self._begun:
            self._begun = True
            self._scheduler.controller.sync.sent(self._run.task.update)
            event_loop.call(self._scheduler.start, self._run)

    def follow(
        self,
        show: Show = lambda event: None,
        begun: Callable[[], object] = lambda: None,
        timeout: float | None = None,
        sending: Callable[[TransferProgress], object] = lambda progress: None,
        notice: Callable[[str], object] = say,
        is_leaving: Callable[[], bool] = lambda: False,
        told: Callable[[Told], object] = lambda event: None,
        hang: Callable[[HangNotice], object] = lambda notice: None,
        ask: Callable[[Prompted | None], object] = lambda event: None,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        """Pass what ranks print and display to ``show``, until the run is over.

        All functions are called in this thread. Ctrl-C stops the run, also while one is called.

        Parameters
        ----------
        show
            Called with what ranks print and display.
        begun
            Called before all others, unless the run is over within a moment.
        timeout
            Seconds after which the run is stopped, without the time that it waits for its turn or
            for the user; ``None`` for no limit.
        sending
            Called with how much of its data has arrived, and where.
        notice
            Called with what else the user should know, also while `values` waits for a link.
        is_leaving
            Called after Ctrl-C; returns whether this process is ending and the run is to go on.
        told
            Called with the values and requests that ranks send while it runs.
        hang
            Called with where the ranks are, when some wait long for others.
        ask
            Called when a rank waits at a prompt, and again as long as one does.
        tick
            Called after each of these, and twice a second if nothing comes.

        Raises
        ------
        Interrupted
            When Ctrl-C stopped the run; every rank was told to stop.
        TimedOut
            When its time was over; every rank was told to stop.
        """
        run, self._notice = self._run, notice
        callbacks = Callbacks(begun, show, sending, notice, told, hang, ask, tick)
        try:
            self.begin()
            self._show_queued(callbacks, limit=timeout)
            if not run.finished:
                run.mark_stopped(timeout)
                self._stop_and_show(callbacks)
                self._raise_if_stopped()
        except KeyboardInterrupt:
            leaves = False
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C is a no
                leaves = is_leaving()
            if leaves:
                raise Interrupted("this kernel is ending; the run continues.") from None
            run.mark_stopped()
            self._stop_and_show(callbacks)
            self._raise_if_stopped()

    def events(self) -> Iterator[Output | Display | RunNotice | HangNotice | Told | None]:
        """Yield what ranks print, display and tell, and notices, until the run is over.

        If nothing comes for a moment, yield ``None``.
        """
        self.begin()
        while True:
            try:
                event = self._run.queue.get(timeout=_SLICE)
            except queue.Empty:
                yield None
                continue
            if event is None:
                return
            if not isinstance(event, TransferProgress | Prompted):
                yield event

    def tell(self, rank: int, message: Message) -> None:
        """Send a message to a rank; later messages arrive after it."""
        event_loop.call(self._teller.tell, rank, message)

    def leave(self) -> None:
        """Let the ranks close their generators; stop the run if this takes longer than a moment."""
        run = self._run
        for rank in sorted(run.waiting):
            self.tell(rank, Message("close"))

        def stop() -> None:
            if not run.finished:
                self._scheduler.interrupt(run.id)

        event_loop.call(lambda: asyncio.get_running_loop().call_later(_LEFT_WITHIN, stop))

    def listen(
        self,
        show: Sink,
        over: Callable[[], None],
        timeout: float | None = None,
        sending: Callable[[TransferProgress], object] = lambda progress: None,
    ) -> None:
        """Have the background thread follow the run, once it is kept and its data was sent.

        Parameters
        ----------
        show
            Called in the background thread with what ranks print and display.
        over
            Called there when the run is over.
        timeout
            Seconds after which the run is stopped, without the time that it waits for its turn.
        sending
            Called in this thread, until this returns, with how much of its data has arrived.
        """
        run = self._run
        run.in_background = True
        arrived: queue.SimpleQueue[TransferProgress] = queue.SimpleQueue()
        try:
            event_loop.call(run.redirect, show, over, arrived.put)  # before its first data arrives
            self.begin()
            if timeout is not None:  # of a part or attempt that begins late, it may be over already
                event_loop.call(self._stop_in_time, timeout)
            with heard_interrupts():
                is_sent = False
                while not is_sent:
                    is_sent = run.kept.wait(_SLICE) and run.data_sent.wait(_SLICE)
                    while not arrived.empty():
                        sending(arrived.get())
        except KeyboardInterrupt:
            self.stop()
            raise

    def when_over(self, over: Callable[[], None]) -> None:
        """Have the background thread call a function at its end; what it still prints is logged."""
        event_loop.call(self._run.redirect, lambda event: None, over)

    @property
    def told(self) -> Flag:
        """Set when all nodes were told of the run, or it is over."""
        return self._run.told

    def stop(self) -> None:
        """Stop the run and return at once."""
        self._run.mark_stopped()
        event_loop.call(self._scheduler.stop, self._run)

    def values(self) -> dict[int, Any]:
        """Return the unpickled values that were asked for, by rank; raise the ranks' errors.

        Raises
        ------
        RemoteError
            Also of the original type.
        ClusterLost
            When the cluster is gone.
        """
        self.check()
        controller = self._scheduler.controller
        packed = {rank: done.values for rank, done in self._run.done.items() if done.values}
        learn = partial(controller.sync.learn, are_named=any(self.task.values.values()))
        return load_all(packed, self.task.values, controller.connection, learn, self._notice)

    def check(self) -> None:
        """Raise the error of a run that failed or was stopped, as `values` does; fetch nothing."""
        self._raise_if_stopped()
        if self._run.trouble:
            raise self._run.trouble.anew()
        if self._run.failures:
            before, reformed = seen_before(self._run.last_findings), self._run.generation > 1
            error = remote_error(self._run.failures, before, reformed, self.task.code is not None)
            error.origin = (self.cluster, self.id)
            raise error

    def renew_ranks(self) -> None:
        """Replace its ranks' processes, to try its task again; `Interrupted` if it is stopped."""
        run = self._run
        event_loop.wait(self._scheduler.renew(run), lambda: raise_if_asked_to_stop(run))
        raise_if_asked_to_stop(run)

    @property
    def loss(self) -> Loss | None:
        """The lost rank or node that ended it, if there was no other reason."""
        return find_loss(self._run, self._scheduler.controller)

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def cluster(self) -> str:
        """The name of its cluster."""
        return self._scheduler.controller.spec.name

    @property
    def task(self) -> Task:
        """What ranks do."""
        return self._run.task

    @property
    def began(self) -> float:
        """When it was sent to ranks, or if it was not, asked for; by the monotonic clock."""
        return self._run.began

    @property
    def seconds(self) -> float:
        """Seconds from when it was asked for to its end, or to now."""
        return self._run.seconds

    @property
    def sent(self) -> bool:
        """Whether ranks may have begun with it."""
        return self._run.sent

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._run.finished

    @property
    def stopped(self) -> bool:
        """Whether it was stopped, by the user or because its time was over."""
        return self._run.stopped

    @property
    def failed(self) -> bool:
        """Whether some rank failed, or the cluster."""
        return self._run.failed

    @property
    def trouble(self) -> SkyError | None:
        """Why the cluster could not go on with it."""
        return self._run.trouble

    @property
    def metrics(self) -> Curves:
        """What its ranks have logged so far."""
        return self._run.metrics

    @property
    def nothing_waits(self) -> bool:
        """Whether everything that came so far was shown."""
        return self._run.queue.empty()

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that have not finished."""
        return self._run.waiting

    @property
    def done(self) -> dict[int, RankDone]:
        """How each rank has finished that has, and was not lost."""
        return dict(self._run.done)

    @heard_interrupts()
    def _show_queued(
        self, callbacks: Callbacks, until: float | None = None, limit: float | None = None
    ) -> None:
        """Show what comes, until the run is over or its time is.

        Parameters
        ----------
        callbacks
            What is called with what comes.
        until
            A time of the monotonic clock.
        limit
            Seconds that its ranks may take, without waiting for their turn or for the user.
        """
        prompts = self._run.prompts
        while True:
            if limit is not None:  # looked up anew, as another notebook may have been first
                until = self._run.began + limit if self._run.sent else None
            left = _SLICE if callbacks.have_begun and not prompts.open else _SHORT_SLICE
            if until is not None:
                left = min(left, until - time.monotonic())
            if left <= 0:
                return
            prompted = None
            with contextlib.suppress(queue.Empty):
                event = self._run.queue.get(timeout=left)
                if event is None:
                    return
                callbacks.call(event)
                prompted = event if isinstance(event, Prompted) else None
            callbacks.begin()
            callbacks.tick()
            if prompts.open and not self._run.stopped:
                asked = time.monotonic()
                callbacks.ask(prompted)
                # The user's time does not count.
                limit = limit and limit + time.monotonic() - asked

    def _stop_and_show(self, callbacks: Callbacks) -> None:
        """Stop the run, and show what ranks still print: for a moment, or all of a program's."""
        event_loop.call(self._scheduler.stop, self._run)
        # With a program its cluster ends, and ranks may be saving something.
        more = self._scheduler.controller.timeouts.stop if self.task.program else 0.0
        try:
            self._show_queued(callbacks, time.monotonic() + STOPPED_WITHIN + more)
        except KeyboardInterrupt:  # Stop was pressed again
            self._ended_at_once = self._run.waiting
            event_loop.call(self._scheduler.kill, self._ended_at_once)

    def _stop_in_time(self, limit: float) -> None:
        """Stop a run that is followed in the background, when its time is over."""
        run = self._run
        if run.finished:
            return
        left = run.began + limit - time.monotonic() if run.sent else min(limit, _SLICE)
        if left > 0:
            asyncio.get_running_loop().call_later(left, self._stop_in_time, limit)
        else:
            run.mark_stopped(limit)
            self._scheduler.interrupt(run.id)

    def _raise_if_stopped(self) -> None:
        within, untold = self._scheduler.controller.timeouts.stop, self._scheduler.untold(self._run)
        raise_if_stopped(self._run, within, untold, self._ended_at_once)
