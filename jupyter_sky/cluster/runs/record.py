"""The record of a run: how each rank ended, and the last part of its output."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jupyter_sky.cluster.runs.output_tail import OutputTail
from jupyter_sky.cluster.runs.progress_bars import find_progress
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.snapshot import (
    CurveView,
    KeptOutput,
    OutputView,
    ProgressView,
    RankOutcome,
    RunState,
    RunView,
)
from jupyter_sky.errors import ClusterLost
from jupyter_sky.formatting import last_terminal_line
from jupyter_sky.transport.protocol.error_report import SingleError, is_consequence
from jupyter_sky.transport.protocol.events import Display, Output, RankDone, RankExited

KEPT = 256 * 1024
"""Bytes of the first shown rank's output that are kept, to show them again after a reload."""

SHOWN = 32 * 1024
"""Bytes of this output in a snapshot."""

_KEPT_OF_OTHERS = 4096  # of each further rank that is shown
_LAST = 4096  # bytes in which the last line and the last progress bar are searched
_SAVED = 64 * 1024  # characters of all other ranks' output together, in a finished record
_ON_ITS_WAY = 0.2  # seconds
_LONGEST = 300  # characters of an error on one line


class RankRecord(NamedTuple):
    """What a rank did in a run that it has finished; a tuple, since these are made by the thousand.

    Attributes
    ----------
    outcome
        How it ended.
    seconds
        How long it took.
    line
        The last line that it printed.
    error
        The first line of its error.
    tail
        The end of its output, if the cell does not show it.
    progress
        The last progress bar in ``tail``.
    """

    outcome: RankOutcome
    seconds: float
    line: str = ""
    error: str | None = None
    tail: str = ""
    progress: ProgressView | None = None


@dataclass(frozen=True)
class RunRecord:
    """A run as it is at one moment.

    Attributes
    ----------
    view
        The run as a whole.
    has_begun
        Whether it had its turn; without it, what ranks do is another run's.
    ranks
        The ranks that have finished.
    restarted
        Ranks whose processes are newer than the run.
    began_empty
        Ranks whose processes were new when it began, so that they lacked variables of earlier runs.
    output
        The end of the first shown rank's output.
    sent_before
        Bytes that were sent to the cluster before the run.
    lines, progress
        The last line and the last progress bar of each rank that the cell shows.
    curves
        What ranks have logged, as curves.
    """

    view: RunView
    has_begun: bool
    ranks: dict[int, RankRecord]
    restarted: frozenset[int]
    began_empty: frozenset[int]
    output: OutputView
    sent_before: int
    lines: dict[int, str]
    progress: dict[int, ProgressView | None]
    curves: list[CurveView]

    def others(self) -> list[OutputView]:
        """Return the ends of the output of ranks that the cell does not show.

        If there is not room for all, ranks that failed get theirs first.
        """
        left, found = _SAVED, []
        failed = (RankOutcome.ERROR, RankOutcome.LOST)
        ranks = [rank for rank, record in self.ranks.items() if record.tail]
        ranks.sort(key=lambda rank: self.ranks[rank].outcome not in failed)
        for at, rank in enumerate(ranks):
            text = self.ranks[rank].tail[-max(0, left // (len(ranks) - at)) :]
            left -= len(text)
            if text:
                found.append(OutputView(rank=rank, text=text))
        return sorted(found, key=lambda output: output["rank"])


@dataclass
class RunRecorder:
    """Records a run from its events; belongs to the background loop.

    Parameters
    ----------
    run
        The run.
    rate
        The cluster's price per hour; ``None`` if it is free, or the price not known.
    sent_before
        Bytes that were sent to the cluster before the run.
    restarted
        Ranks whose processes are newer than the run.
    """

    run: Run
    rate: float | None = None
    sent_before: int = 0
    restarted: set[int] = field(default_factory=set)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._began_empty: frozenset[int] = frozenset()
        self._counted_from = time.monotonic()
        self._seconds: float | None = None
        self._ranks: dict[int, RankRecord] = {}
        self._output = {
            rank: OutputTail(KEPT if at == 0 else _KEPT_OF_OTHERS)
            for at, rank in enumerate(self.run.task.show)
        }

    @property
    def kept(self) -> KeptOutput:
        """The output of the first shown rank, as far as it is kept."""
        return next((tail.kept for tail in self._output.values()), KeptOutput())

    def begin(self, restarted: Iterable[int]) -> None:
        """Record that ranks begin the run; those in ``restarted`` have new processes."""
        ago = time.monotonic() - self.run.began  # another kernel may have begun it long ago
        self.started = time.time() - ago
        self._counted_from = self.run.began
        if self.run.task.attempt.number == 1:  # in further attempts, ranks are meant to be new
            self._began_empty |= frozenset(restarted)

    def end(self) -> None:
        """Record how long it has taken; nothing changes after that."""
        took = self.run.took
        self._seconds = self._elapsed() if took is None else took
        if isinstance(self.run.trouble, ClusterLost):
            for rank in self.run.task.ranks:
                if rank not in self._ranks:
                    self._add(rank, RankOutcome.LOST, None, "", None)
        failed = (RankOutcome.ERROR, RankOutcome.LOST)
        if not any(record.outcome in failed for record in self._ranks.values()):
            # Errors that look like consequences are shown as causes if there is no other.
            for rank, record in self._ranks.items():
                if record.outcome is RankOutcome.RELEASED and record.error:
                    self._ranks[rank] = record._replace(outcome=RankOutcome.ERROR)

    def on_output(self, event: Output | Display) -> None:
        """Record what a shown rank prints."""
        if event.rank in self._output:
            self._output[event.rank].add(event)

    def on_rank_done(self, event: RankDone) -> None:
        """Record how a rank finished."""
        outcome, error = RankOutcome.OK, None
        if event.outcome == "error" and event.error is not None:
            is_cause = not is_consequence(event.error["text"])
            outcome = RankOutcome.ERROR if is_cause else RankOutcome.RELEASED
            # The text of a group only tells how many errors it is made of.
            said: Sequence[SingleError] = event.error["exceptions"] or [event.error]
            words = (": ".join(filter(None, (each["type"], each["text"]))) for each in said)
            error = "; ".join(map(_in_a_line, words))[:_LONGEST]
        elif event.outcome == "interrupted":
            stopped = self.run.stopped or not self.run.failures
            outcome = RankOutcome.STOPPED if stopped else RankOutcome.RELEASED
        tail = event.tail.decode(errors="replace") if event.tail else ""
        self._add(event.rank, outcome, error, tail, event.seconds)

    def on_rank_exited(self, event: RankExited) -> None:
        """Record that the process of a rank ended before the rank had finished."""
        self.restarted.add(event.rank)
        self._add(event.rank, RankOutcome.LOST, _in_a_line(event.reason), event.tail, None)

    def on_rank_back(self, rank: int) -> None:
        """Record that a rank takes part again, with a new process."""
        self._ranks.pop(rank, None)

    def record(self) -> RunRecord:
        """Return the record as it is at this moment."""
        ends = {rank: tail.last_lines.text for rank, tail in self._output.items()}
        first = next(iter(self._output), 0)
        progress = {rank: find_progress(text) for rank, text in ends.items()}
        # The bar of a rank that has finished says nothing about those that go on.
        told = (
            each for rank, each in progress.items() if self.run.finished or rank not in self._ranks
        )
        talk = self.run.talk
        return RunRecord(
            view=self._view(talk.progress if talk else next(told, None)),
            has_begun=self.run.sent,
            ranks=dict(self._ranks),
            restarted=frozenset(self.restarted),
            began_empty=self._began_empty,
            output=OutputView(
                rank=first, text=self._output[first].end(SHOWN) if self._output else ""
            ),
            sent_before=self.sent_before,
            lines={rank: last_terminal_line(text) for rank, text in ends.items()},
            progress=progress,
            curves=self.run.metrics.view(is_last=self.run.finished),
        )

    def _add(
        self,
        rank: int,
        outcome: RankOutcome,
        error: str | None,
        tail: str,
        seconds: float | None,
    ) -> None:
        if rank in self._output:
            line, tail = last_terminal_line(self._output[rank].last_lines.text), ""
        else:
            line = last_terminal_line(tail) if tail else ""
        took = self._elapsed() if seconds is None else seconds
        progress = find_progress(tail[-_LAST:]) if tail else None
        self._ranks[rank] = RankRecord(outcome, took, line, error, tail, progress)

    def _elapsed(self) -> float:
        # Not by `time.time`, whose clock may be set meanwhile.
        return time.monotonic() - self._counted_from

    def _view(self, progress: ProgressView | None) -> RunView:
        run, attempt = self.run, self.run.task.attempt
        seconds = self._elapsed() if self._seconds is None else self._seconds
        return {
            "id": run.id,
            "state": self._state(),
            "background": run.in_background,
            "started": self.started,
            "seconds": seconds,
            "ranks": list(run.task.ranks),
            "shown": list(run.task.show),
            "title": run.task.title,
            "cell": run.task.place.cell,
            "progress": progress,
            "cost": None if self.rate is None else self.rate * seconds / 3600,
            "trouble": str(run.trouble) if run.trouble else None,
            "where": run.hang.text,
            "warns": run.hang.is_warning,
            "attempt": (attempt.number, attempt.limit) if attempt.number > 1 else None,
            "earlier": list(attempt.earlier),
        }

    def _state(self) -> RunState:
        run = self.run
        if not run.finished:
            # A run that is only on its way to the ranks should not flash as waiting.
            leaves = not run.in_background and self._elapsed() < _ON_ITS_WAY
            return RunState.RUNNING if run.sent or leaves else RunState.WAITING
        if run.stopped:
            return RunState.INTERRUPTED
        return RunState.ERROR if run.failed else RunState.OK


def _in_a_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:_LONGEST]
