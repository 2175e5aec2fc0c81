"""A run: one execution of a cell or a call on the ranks of a cluster, its state and its results.

It belongs to the background loop, where the scheduler reports events to it. What the user's thread
has to show goes into its queue, which `RunHandle` reads.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from textwrap import indent

from jupyter_sky.cluster.debugging.prompts import Prompts
from jupyter_sky.cluster.errors import BEFORE_LAST_LINES, Failure, RankLost
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.hang_report import HangReport
from jupyter_sky.cluster.runs.talk import Talk
from jupyter_sky.cluster.runs.task import HangNotice, RunNotice, SavedCheckpoint, Task
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.error_report import ErrorReport, report
from jupyter_sky.transport.protocol.events import (
    Display,
    Output,
    Prompted,
    RankDone,
    RankExited,
    Saved,
    Told,
)
from jupyter_sky.transport.tasks import Flag

_LONGEST = 1000  # characters of the path of a checkpoint, and of why a rank goes on

Queued = Output | Display | Told | Prompted | TransferProgress | RunNotice | HangNotice | None
"""What the user's thread reads; ``None`` is the end."""

Show = Callable[[Output | Display], object]
"""Called with what ranks print and display."""

Sink = Callable[[Output | Display | RunNotice], object]
"""Called with that and with what else the user should know."""


def say(text: str) -> None:
    """Tell the user something where there is no cell to show it."""
    print(text, file=sys.stderr)


@dataclass
class Callbacks:
    """What `RunHandle.follow` calls for each kind of event in the queue.

    `begun` is called before the first event, or when the run has taken a moment. Most cells are
    over in a few milliseconds and print nothing: to show that they run would take longer than they
    do, so for these it is not called.
    """

    begun: Callable[[], object]
    show: Show
    sending: Callable[[TransferProgress], object]
    notice: Callable[[str], object]
    told: Callable[[Told], object]
    hang: Callable[[HangNotice], object]
    ask: Callable[[Prompted | None], object]
    tick: Callable[[], object]
    have_begun: bool = False

    def begin(self) -> None:
        """Call `begun`, unless it was called."""
        if not self.have_begun:
            self.have_begun = True
            self.begun()

    def call(self, event: Queued) -> None:
        """Call the function for an event."""
        self.begin()
        match event:
            case Prompted() | None:
                pass  # `RunHandle` calls `ask`
            case Told():
                self.told(event)
            case TransferProgress():
                self.sending(event)
            case RunNotice():
                self.notice(event.text)
            case HangNotice():
                self.hang(event)
            case _:
                self.show(event)


class Run:
    """A run, from when it was asked for until every rank has finished.

    Parameters
    ----------
    task
        What ranks should do.
    host_of
        Returns the name of a rank's node.
    on_finish
        Called once when the run is over.
    identity
        The run's id, if another kernel has begun it.
    reforms
        Whether ranks keep their variables when another one is lost; see `RuntimeEnv.reforms`.
    talk
        What exchanges messages with its ranks while it runs, if anything does.

    Attributes
    ----------
    started, began
        When it was asked for, and when it was sent to ranks, by the monotonic clock.
    generation
        The process group that its ranks were in; 0 before it was sent.
    queue
        What the user's thread has to show, in order; ``None`` is the end.
    done, failures
        The last event of each rank that has finished; how ranks failed, in order.
    trouble
        Why the cluster could not go on with it.
    stopped_by_user, time_limit, asked_to_stop
        Whether the user stopped it; the seconds after which it was stopped; whether this notebook
        has asked its ranks to stop it, or is about to.
    in_background
        Whether the kernel does not wait for it.
    kept
        Set when the end of this kernel would not have it forgotten, or it is over.
    data_sent
        Set when its data was sent, or is not to be sent any more.
    sent
        Whether its request was sent, so that ranks may have begun with it.
    is_recorded
        Whether this computer's disk has a record of what it owes; see `owed_runs`.
    told
        Set when all nodes were told of it, or it is over.
    over
        Set when it is over.
    hang
        Where its ranks are, while one waits for another or for the user.
    prompts, metrics
        The prompts at which its ranks wait for the user; what they have logged.
    checkpoints
        The last checkpoint that its ranks, or those of earlier attempts, have saved; and the last
        that its bucket has, too.
    """

    def __init__(
        self,
        task: Task,
        host_of: Callable[[int], str],
        on_finish: Callable[[Run], None],
        identity: str | None = None,
        reforms: bool = True,
        talk: Talk | None = None,
    ) -> None:
        self.id = identity or os.urandom(6).hex()
        self.task = task
        self.talk = talk
        self.started = self.began = time.monotonic()
        self.generation = 0
        self.queue: queue.SimpleQueue[Queued] = queue.SimpleQueue()
        self.done: dict[int, RankDone] = {}
        self.failures: list[Failure] = []
        self.trouble: SkyError | None = None
        self.stopped_by_user = False
        self.time_limit: float | None = None
        self.asked_to_stop = False
        self.in_background = False
        self.kept = Flag()
        self.data_sent = Flag()
        self.sent = False
        self.is_recorded = False
        self.told = Flag()
        self.over = asyncio.Event()
        self.hang = HangReport()
        checkpoint = task.attempt.checkpoint
        self.metrics = Curves(task.attempt.metrics, checkpoint.step if checkpoint else None)
        self.checkpoints = task.attempt.checkpoints
        self.prompts = Prompts(self._on_prompts_changed)
        self._failed_at: float | None = None
        self._host_of = host_of
        self._on_finish = on_finish
        self._reforms = reforms
        self._waiting = set(task.ranks)
        self._ended: float | None = None
        self._sink: Sink | None = None
        self._on_end: Callable[[], None] | None = None
        self._sending: Callable[[TransferProgress], object] = self.queue.put

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that have not finished."""
        return frozenset(self._waiting)

    def waits_for(self, rank: int) -> bool:
        """Return whether a rank has not finished."""
        return rank in self._waiting

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self.over.is_set()

    @property
    def took(self) -> float | None:
        """Seconds that the slowest rank took, as measured on the nodes; ``None`` if not known.

        Our own clock would count a broken connection too, after which we hear of the end.
        """
        seconds = [event.seconds for event in self.done.values() if event.seconds is not None]
        return max(seconds) if len(seconds) == len(self.task.ranks) else None

    @property
    def seconds(self) -> float:
        """Seconds from when it was asked for to its end, or to now."""
        if self._ended is None:
            return time.monotonic() - self.started
        took = self.took
        return (self._ended if took is None else self.began + took) - self.started

    @property
    def stopped(self) -> bool:
        """Whether it was stopped, by the user or because its time was over."""
        return self.stopped_by_user or self.time_limit is not None

    def mark_stopped(self, limit: float | None = None) -> None:
        """Note, in any thread, that the user stops it, or that its limit of seconds is over."""
        self.asked_to_stop = True
        if limit is None:
            self.stopped_by_user = True
        else:
            self.time_limit = limit

    @property
    def failed(self) -> bool:
        """Whether some rank failed, or the cluster."""
        return bool(self.failures or self.trouble)

    @property
    def is_ending(self) -> bool:
        """Whether it was stopped, or some rank has failed."""
        return self.stopped or self.failed

    @property
    def last_findings(self) -> Findings | None:
        """Where its ranks were when one last waited for another, if just before its end."""
        over = self._failed_at or self._ended
        return None if over is None else self.hang.just_before(over)

    def redirect(
        self,
        sink: Sink,
        on_end: Callable[[], None],
        sending: Callable[[TransferProgress], object] = lambda progress: None,
    ) -> None:
        """Pass output to ``sink`` and the progress of its data to ``sending``, not to the queue.

        ``on_end`` is called when the run ends.
        """
        self._sink, self._on_end, self._sending = sink, on_end, sending
        while not self.queue.empty():
            event = self.queue.get_nowait()
            if isinstance(event, Output | Display | RunNotice):
                sink(event)
        if self.finished:
            on_end()

    def on_output(self, event: Output | Display | RunNotice) -> None:
        """Handle what a rank has printed or displayed, or what else the user should know."""
        if self._sink:
            self._sink(event)
        else:
            self.queue.put(event)

    def on_told(self, event: Told | Prompted | Saved, nodes: Iterable[Connection]) -> None:
        """Handle what a rank of one of the nodes sends before it has finished, or asks the user."""
        if isinstance(event, Saved):
            if event.path.isprintable() and len(event.path) <= _LONGEST:
                self._on_saved(event, nodes)
        elif isinstance(event, Prompted):
            self.prompts.on_prompted(event)
            self.queue.put(event)
            if event.kind == "over" and event.text and event.rank not in self.task.show:
                self.on_notice(f"rank {event.rank} goes on: {event.text[:_LONGEST]}")
        elif self.talk:
            self.talk.on_told(event)
        elif self.task.talks:
            self.queue.put(event)

    def _on_saved(self, event: Saved, nodes: Iterable[Connection]) -> None:
        ranks = frozenset(self.task.ranks)
        only_on = () if event.uploaded else tuple(each for each in nodes if each.ranks & ranks)
        saved = SavedCheckpoint(event.path, event.step, time.monotonic(), only_on)
        uploaded = [each for each in self.checkpoints if not each.only_on]
        self.checkpoints = (saved, *uploaded) if only_on else (saved,)

    def _on_prompts_changed(self) -> None:
        """Update who waits for the user; also called in the user's thread, when it answers."""
        self.hang.text = self.prompts.sentence or None

    def on_rank_done(self, event: RankDone) -> None:
        """Handle that a rank has finished."""
        if event.values and not self.task.asks(event.rank):
            # Unpickling a value runs whatever code its node put into it.
            event = replace(event, values=None)
            self.on_notice(f"rank {event.rank} sent a value that was not asked for: not opened")
        self.done[event.rank] = event
        if event.outcome == "error" and event.error is not None:
            self._fail(event.rank, event.error)
        elif event.outcome == "interrupted" and not self.failures and not self.stopped:
            # Not by this kernel, but by `%sky interrupt`, the strip or another kernel.
            self.stopped_by_user = True
        if self.talk:
            self.talk.on_rank_done(event)
        self._settle(event.rank)

    def on_rank_exited(self, event: RankExited) -> None:
        """Handle that the process of a rank ended before the rank had finished."""
        goes_on = self.talk is not None and self.talk.on_rank_exited(event)
        if event.ignored_stop and not (self.failures or goes_on):
            self.stopped_by_user = True  # as in `on_rank_done`
        if not self.stopped and not goes_on:
            self._fail(event.rank, rank_lost(event, self._reforms))
        self._settle(event.rank)

    def take_back(self, rank: int) -> None:
        """Wait for a rank again, which has a new process."""
        self._waiting.add(rank)

    def leave_out(self, rank: int) -> None:
        """Stop waiting for a rank that was taken back but could not begin."""
        self._settle(rank)

    def on_transfer(self, progress: TransferProgress) -> None:
        """Handle that more of its data has arrived."""
        self._sending(progress)

    def on_notice(self, text: str) -> None:
        """Tell the user something that is not output."""
        self.on_output(RunNotice(text))

    def on_where(self, found: Findings | None, is_long: bool) -> None:
        """Handle where its ranks are while some wait for others; the cell shows long waits."""
        notice = self.hang.update(found, is_long, self.prompts.sentence)
        if notice and not self._sink:
            self.queue.put(notice)

    def end(self, trouble: SkyError | None = None) -> None:
        """End the run before its ranks have finished; ``trouble`` says why, if they do not."""
        self.trouble = self.trouble or trouble
        self._finish()

    def _fail(self, rank: int, error: ErrorReport) -> None:
        self._failed_at = self._failed_at or time.monotonic()
        self.failures.append(Failure(rank, self._host_of(rank), error))

    def _settle(self, rank: int) -> None:
        self._waiting.discard(rank)
        self.prompts.remove(rank)
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self._ended = time.monotonic()
            self.over.set()
            self.told.set()
            self.kept.set()
            self.prompts.close()
            self.hang.end()
            try:
                # Before the user's thread hears of the end: the record is complete then.
                self._on_finish(self)
            finally:
                self.queue.put(None)
                if self._on_end:
                    self._on_end()


def rank_lost(event: RankExited, reforms: bool) -> ErrorReport:
    """Return the error of a run whose rank was lost."""
    last_lines = indent(event.tail.rstrip(), "    ")
    last_lines = last_lines and f"{BEFORE_LAST_LINES}\n{last_lines}"
    if not event.again:
        then = "It is not restarted."
    elif reforms:
        then = "It restarts with an empty namespace; ranks that were not lost keep theirs."
    else:
        then = "All restart with empty namespaces: their framework connects a process only once."
    return report(RankLost, f"rank {event.rank} is lost: {event.reason}. {then}{last_lines}")
