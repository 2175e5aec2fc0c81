"""The monitor of a cluster: what the panel and the sidebar show of it, at any moment."""

from __future__ import annotations

import time
from typing import Any

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.runs.output_tail import OutputTail
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.snapshot import RankView, RunState, RunView, Snapshot
from jupyter_sky.cluster.state import RankPhase, RankState
from jupyter_sky.transport.protocol.events import Display, Output

_KEPT = 32 * 1024  # bytes of output


class Monitor:
    """Gives snapshots of a cluster and of the run that was begun last; in the background loop.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._run: Run | None = None
        self._began = 0.0
        self._seconds: float | None = None
        self._output = OutputTail(_KEPT)

    def begin(self, run: Run) -> None:
        """Show a run that has begun, in place of the one before."""
        self._run, self._began, self._seconds = run, time.time(), None
        self._output.clear()

    def end(self, run: Run) -> None:
        """Show how long a run has taken that is over."""
        if run is self._run:
            took = run.took
            self._seconds = time.time() - self._began if took is None else took

    def on_output(self, event: Output | Display) -> None:
        """Keep the end of what the run's first shown rank prints."""
        if self._run is not None and event.rank == self.shown_rank:
            self._output.add(event)

    @property
    def shown_rank(self) -> int:
        """The rank whose output a snapshot has."""
        return self._run.task.show[0] if self._run and self._run.task.show else 0

    def snapshot(self) -> Snapshot:
        """Return what is known at this moment."""
        controller = self._controller
        state = controller.state
        gpus = sorted({node.gpu for node in state.nodes if node.gpu})
        return {
            "version": 1,
            "cluster": {
                "name": controller.spec.name,
                "provider": controller.provider.name,
                "phase": state.phase,
                "note": controller.note,
                "generation": state.generation,
                "nodes": len(state.nodes),
                "gpu": gpus[0] if gpus else None,
                "price": controller.price,
                "cost": controller.cost,
            },
            "run": _run_view(self._run, self._began, self._seconds) if self._run else None,
            "sent_bytes": controller.sent_bytes,
            "nodes": [
                {"node": node.node, "addr": node.addr, "gpu": node.gpu} for node in state.nodes
            ],
            "ranks": [self._rank_view(rank) for rank in state.ranks],
            "output": {"rank": self.shown_rank, "text": self._output.text[-_KEPT:]},
        }

    def _rank_view(self, rank: RankState) -> RankView:
        usage: dict[str, Any] = self._controller.reports.get(rank.rank, {})
        node = self._controller.node(rank.rank)
        return {
            "rank": rank.rank,
            "node": rank.node,
            "phase": RankPhase.GONE if rank.phase is RankPhase.DEAD else rank.phase,
            "utilisation": usage.get("utilisation"),
            "memory": usage.get("memory"),
            "gpu": node.ranks.index(rank.rank) if node.accelerators else None,
            "line": usage.get("line", ""),
            "trouble": rank.trouble,
        }


def _run_view(run: Run, began: float, seconds: float | None) -> RunView:
    return {
        "id": run.id,
        "state": _run_state(run),
        "background": run.in_background,
        "started": began,
        "seconds": seconds if seconds is not None else time.time() - began,
        "ranks": list(run.task.ranks),
        "title": run.task.title,
    }


def _run_state(run: Run) -> RunState:
    if not run.finished:
        return RunState.RUNNING
    if run.stopped:
        return RunState.INTERRUPTED
    return RunState.ERROR if run.failed else RunState.OK
