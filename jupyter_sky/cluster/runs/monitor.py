"""The monitor of a cluster: records its runs, and makes the snapshots that users are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.inspection.inspect import inspect
from jupyter_sky.cluster.inspection.watch import watch
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.runs.progress_bars import find_progress
from jupyter_sky.cluster.runs.record import RunRecord, RunRecorder
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.snapshot import (
    ClusterView,
    KeptOutput,
    NodeView,
    OutputView,
    RankView,
    RunState,
    RunView,
    Snapshot,
)
from jupyter_sky.cluster.state import ClusterState, RankPhase, RankState
from jupyter_sky.providers.base import Node
from jupyter_sky.transport.protocol.events import Display, Output, RankDone, RankExited
from jupyter_sky.transport.protocol.inspection import RankUsage

_REMEMBERED = 16  # runs that are over
_NO_USAGE: RankUsage = {"rank": -1, "line": "", "utilisation": None, "memory": None}


@dataclass(frozen=True)
class _Moment:
    """What was known of the cluster at one moment.

    Attributes
    ----------
    state
        The state of the cluster.
    usage
        The last known usage of each rank.
    sent_bytes
        Bytes that were sent to it.
    restarted
        Ranks whose processes are new and have not yet been in a run.
    """

    state: ClusterState
    usage: Mapping[int, RankUsage]
    sent_bytes: int
    restarted: frozenset[int]


@dataclass
class _Finished:
    """What is kept of a run that is over: its record, output and metrics, and the cluster's state.

    The run itself is not kept, because it holds the values that ranks returned. The snapshot is
    made when it is first asked for: for most calls it never is.
    """

    moment: _Moment
    record: RunRecord
    output: KeptOutput
    metrics: Curves
    snapshot: Snapshot | None = None


class Monitor:
    """Records the runs of a cluster, and makes snapshots; belongs to the background loop.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._recorders: dict[str, RunRecorder] = {}
        self._finished: dict[str, _Finished] = {}
        self._current: str | None = None
        self._restarted: set[int] = set()
        self._watches: dict[str, asyncio.TimerHandle] = {}

    def add(self, run: Run) -> None:
        """Begin to record a run that waits for its turn; also called in the user's thread."""
        self._recorders[run.id] = RunRecorder(
            run, self._controller.cost.rate.amount, self._controller.sent_bytes
        )

    def begin(self, run: Run) -> None:
        """Record that a run has begun; it is now the cluster's present run."""
        if run.id not in self._recorders:
            self.add(run)
        ranks = self._restarted.intersection(run.task.ranks)
        self._recorders[run.id].begin(ranks)
        self._controller.usage.forget_lines(run.task.ranks)
        self._restarted -= ranks
        self._current = run.id
        # A run on one rank, too, can wait for the others: in a collective that they do not come to.
        can_wait = len(self._controller.ranks) > 1 and not run.task.script and not run.task.serves
        if can_wait and run.id not in self._watches:  # it may have been sent before, in vain
            self._watches[run.id] = watch(self._controller, run, run.task.hang_after)

    def end(self, run: Run) -> None:
        """Keep the record of a run that is over."""
        if watching := self._watches.pop(run.id, None):
            watching.cancel()
        recorder = self._recorders.get(run.id)
        if recorder is None:
            return
        recorder.end()
        finished = _Finished(self._moment(), recorder.record(), recorder.kept, run.metrics)
        self._finished[run.id] = finished
        del self._recorders[run.id]
        while len(self._finished) > _REMEMBERED:
            del self._finished[next(iter(self._finished))]

    def on_output(self, event: Output | Display) -> None:
        """Record output of a rank."""
        if recorder := self._recorders.get(event.run or ""):
            recorder.on_output(event)

    def on_rank_done(self, event: RankDone) -> None:
        """Record that a rank has finished a run."""
        if recorder := self._recorders.get(event.run):
            recorder.on_rank_done(event)

    def on_rank_exited(self, event: RankExited) -> None:
        """Record that the process of a rank ended, and its variables with it."""
        if recorder := self._recorders.get(event.run or ""):
            recorder.on_rank_exited(event)
        self._restarted.add(event.rank)

    def on_rank_back(self, run: str, rank: int) -> None:
        """Record that a rank takes part in a run again, with a new process."""
        if recorder := self._recorders.get(run):
            recorder.on_rank_back(rank)

    async def where(self) -> Findings:
        """Find out where the ranks are; the present run shows it from now on."""
        found = await inspect(self._controller)
        if recorder := self._recorders.get(self._current or ""):
            recorder.run.hang.show(found)
            self._controller.wake()
        return found

    def shown_rank(self, run: str | None) -> int:
        """Return the rank whose output a run's snapshot has; by default the present run's."""
        record = self._record(run or self._current)
        return record.output["rank"] if record else 0

    def output(self, run: str) -> KeptOutput:
        """Return the output of the first shown rank in a run, as far as it is kept."""
        if run in self._finished:
            return self._finished[run].output
        recorder = self._recorders.get(run)
        return recorder.kept if recorder else KeptOutput()

    def metrics(self) -> Curves:
        """Return the metrics of the last run that has logged any."""
        # Copies, since runs begin and end in the loop while the user's thread asks.
        recorders = [each.run.metrics for each in list(self._recorders.values())]
        known = [*(each.metrics for each in list(self._finished.values())), *recorders]
        return next((each for each in reversed(known) if each.has_any), Curves())

    def ended(self) -> list[RunView]:
        """Return the last runs that are over, in the order of their ends."""
        return [each.record.view for each in list(self._finished.values())]

    def snapshot(self, run: str | None = None) -> Snapshot:
        """Return a snapshot of a run, or of the cluster.

        Parameters
        ----------
        run
            A run's id: the snapshot has the run's ranks, and if it has ended, as they were then. By
            default the snapshot is of the cluster, with all ranks and the present run.
        """
        if finished := self._finished.get(run or ""):
            if made := finished.snapshot:
                return {**made, "cluster": self._cluster_view()}
            made = self._snapshot(finished.record, finished.moment, is_of_run=True)
            made["others"] = finished.record.others()
            finished.snapshot = made
            return {**made}
        record = self._record(run or self._current)
        shown = self._snapshot(record, self._moment(), is_of_run=run is not None)
        has_run = shown["run"] is not None and shown["run"]["state"] is RunState.RUNNING
        work = None if has_run else self._controller.work.view(self._controller.ranks)
        if work is not None and run in (None, work["id"]):
            shown["run"] = work
        return shown

    def _record(self, run: str | None) -> RunRecord | None:
        if run in self._finished:
            return self._finished[run].record
        recorder = self._recorders.get(run or "")
        return recorder.record() if recorder else None

    def _moment(self) -> _Moment:
        controller = self._controller
        restarted = frozenset(self._restarted)
        return _Moment(
            controller.state, controller.usage.latest(), controller.sent_bytes, restarted
        )

    def _snapshot(self, record: RunRecord | None, at: _Moment, is_of_run: bool) -> Snapshot:
        state = at.state
        nodes = {node.node: node for node in state.nodes}
        everyone = (rank.rank for rank in state.ranks)
        chosen = set(record.view["ranks"] if record and is_of_run else everyone)
        return {
            "version": 1,
            "cluster": self._cluster_view(),
            "run": record.view if record else None,
            "sent_bytes": at.sent_bytes - (record.sent_before if record else 0),
            "nodes": [
                NodeView(node=node.node, addr=node.addr, gpu=node.gpu) for node in state.nodes
            ],
            "ranks": [
                _rank_view(rank, nodes[rank.node], record, at, is_of_run)
                for rank in state.ranks
                if rank.rank in chosen
            ],
            "output": record.output if record else OutputView(rank=0, text=""),
            "others": [],
            "curves": record.curves if record else [],
        }

    def _cluster_view(self) -> ClusterView:
        controller = self._controller
        gpus = sorted({node.gpu for node in controller.state.nodes if node.gpu})
        return {
            "id": controller.id,
            "name": controller.spec.name,
            "provider": controller.provider.name,
            "phase": controller.state.phase,
            "note": controller.note,
            "generation": controller.state.generation,
            "nodes": len(controller.state.nodes),
            "gpu": gpus[0] if gpus else None,
            "price": controller.cost.rate.price,
            "cost": controller.cost.so_far,
            "unit": controller.cost.rate.unit,
            "pages": controller.pages.views(),
        }


def _rank_view(
    rank: RankState, node: Node, record: RunRecord | None, at: _Moment, is_of_run: bool
) -> RankView:
    number = rank.rank
    usage = at.usage.get(number, _NO_USAGE)
    phase = RankPhase.GONE if rank.phase is RankPhase.DEAD else rank.phase
    line, progress = usage["line"], None
    ended = record.ranks.get(number) if record else None
    if record and is_of_run and not record.has_begun:
        # What it runs and prints is another run's.
        line = ""
        if phase is RankPhase.RUNNING and record.view["state"] is not RunState.WAITING:
            phase = RankPhase.IDLE
    elif record and number in record.lines:
        line, progress = record.lines[number], record.progress[number]
    elif ended:
        line, progress = ended.line, ended.progress
    elif record:
        progress = find_progress(line)
    return {
        "rank": number,
        "node": rank.node,
        "phase": phase,
        "utilisation": usage["utilisation"],
        "memory": usage["memory"],
        "gpu": node.ranks.index(number) % node.accelerators if node.accelerators else None,
        "line": line,
        "trouble": rank.trouble,
        "outcome": ended.outcome if ended else None,
        "seconds": ended.seconds if ended else None,
        "error": ended.error if ended else None,
        "progress": progress,
        "restarted": number in at.restarted or (record is not None and number in record.restarted),
        "began_empty": record is not None and number in record.began_empty,
    }
