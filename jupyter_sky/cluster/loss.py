"""What a run has lost with a rank or a node, to decide on a retry and where it resumes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import Failure, RankLost
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Attempt, SavedCheckpoint
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.errors import ClusterLost, GroupBroken, NoConnection, SkyError
from jupyter_sky.formatting import (
    format_count,
    format_duration,
    format_elapsed,
    format_list,
    format_ranks,
)
from jupyter_sky.transport.protocol.error_report import is_consequence


@dataclass(frozen=True)
class Loss:
    """What a run has lost.

    Attributes
    ----------
    what
        Describes the rank or node, and the reason.
    checkpoints
        The checkpoints of this and earlier attempts that are left, the last one first.
    seconds
        How long ranks have worked since the checkpoint, or since the attempt began.
    steps
        How many steps they have logged since then; ``None`` if that is not known.
    nodes
        The nodes whose loss ended the cluster.
    metrics
        What the run had logged.
    """

    what: str
    checkpoints: tuple[SavedCheckpoint, ...]
    seconds: float
    steps: float | None
    nodes: tuple[str, ...] = ()
    metrics: Curves | None = None

    @property
    def checkpoint(self) -> SavedCheckpoint | None:
        """The last checkpoint that is left."""
        return next(iter(self.checkpoints), None)

    @property
    def sentence(self) -> str:
        """What was lost, and since when; without a full stop."""
        steps = "" if self.steps is None else format_count(int(self.steps), "step")
        time = format_elapsed(self.seconds) if self.seconds < 60 else format_duration(self.seconds)
        lost = format_list([*filter(None, [steps]), time])
        if self.checkpoint is None:
            return f"{self.what}. Lost: {lost}, as no checkpoint was saved (`sky.save`)"
        step = self.checkpoint.step
        at = "" if step is None else f" of step {step:.12g}"
        return f"{self.what}. Lost: {lost}, since the checkpoint {self.checkpoint.path}{at}"


def how_to_go_on(loss: Loss, attempt: Attempt) -> str:
    """Say how to go on where the kernel that began a run has ended; empty if there is nothing."""
    parts = []
    if attempt.left:
        parts.append(
            "no further attempt of `--retry` begins, because the kernel that began this run has "
            "ended"
        )
    if checkpoint := loss.checkpoint:
        step = "" if checkpoint.step is None else f", of step {checkpoint.step:.12g}"
        parts.append(
            f"run the cell again with `sky.load({checkpoint.path!r}, …)` to go on from the last "
            f"checkpoint{step}"
        )
    elif parts:  # an earlier attempt may have saved one that is not known here
        parts.append("run the cell again")
    return "; ".join(parts)


def find_loss(run: Run, controller: Controller) -> Loss | None:
    """Return what a run has lost; ``None`` if it ended otherwise, as with its own error."""
    if not run.finished or run.stopped or run.asked_to_stop:
        return None
    if controller.state.phase is ClusterPhase.LOST:
        what = _describe(controller.loss)
        return _measured(run, what, controller.loss.nodes) if what else None
    what = _lost_ranks(run.failures) or _describe(run.trouble)
    return _measured(run, what) if what else None


def is_tried_again(run: Run) -> bool:
    """Return whether a run has lost a rank, and what the others do will be done anew for that."""
    is_ours = run.task.turn is not None  # further attempts at a run end with its kernel
    return is_ours and run.task.attempt.left > 0 and _lost_ranks(run.failures) is not None


def loss_of_trouble(trouble: SkyError, attempt: Attempt) -> Loss | None:
    """Return what was lost before an attempt could begin; ``None`` if the trouble is another."""
    what = _describe(trouble)
    nodes = trouble.nodes if isinstance(trouble, ClusterLost) else ()
    if not what:
        return None
    return Loss(what, _left(attempt.checkpoints), 0.0, None, nodes, attempt.metrics)


def _describe(trouble: SkyError | None) -> str | None:
    """Describe the node or rank that was lost; ``None`` if something else happened."""
    match trouble:
        case ClusterLost(nodes=nodes) if nodes:
            return str(trouble).partition(". ")[0]
        case NoConnection() | GroupBroken():
            return str(trouble).partition(". ")[0].rstrip(".")
    return None


def _lost_ranks(failures: Sequence[Failure]) -> str | None:
    """Describe the ranks that were lost, if that is why the others have failed."""
    lost: list[Failure] = []
    for failure in failures:
        if failure.error["type"] == RankLost.__qualname__:
            lost.append(failure)
        elif not lost and not is_consequence(failure.error["text"]):
            return None  # the code's own error: a rank lost after it did not react to Stop
    if not lost:
        return None
    reason = lost[0].error["text"].partition(" lost: ")[2].partition(". ")[0]
    ranks = [failure.rank for failure in lost]
    if len(ranks) == 1:
        return f"{format_ranks(ranks)} is lost: {reason}"
    return f"{format_ranks(ranks)} are lost (rank {ranks[0]}: {reason})"


def _measured(run: Run, what: str, nodes: tuple[str, ...] = ()) -> Loss:
    checkpoints = _left(run.checkpoints)
    checkpoint = next(iter(checkpoints), None)
    step = checkpoint.step if checkpoint else None
    since = max(run.began, checkpoint.when) if checkpoint else run.began
    last, steps = run.metrics.last_step, None
    # Values logged without a step count from 0 in each attempt, and do not help here.
    if last is not None and last >= (step or 0) and (checkpoint is None or step is not None):
        steps = last - (step or 0) or None
    seconds = max(0.0, run.started + run.seconds - since)
    return Loss(what, checkpoints, seconds, steps, nodes, run.metrics)


def _left(checkpoints: Iterable[SavedCheckpoint]) -> tuple[SavedCheckpoint, ...]:
    return tuple(each for each in checkpoints if each.is_there)
