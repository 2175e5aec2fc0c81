"""Watching a cluster, so that at any moment there is a snapshot of it to show."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Literal

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.snapshot import Rank as ShownRank
from jupyter_sky.cluster.snapshot import Run as ShownRun
from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.cluster.state import RankState
from jupyter_sky.transport.events import Display, Output

_KEPT = 32 * 1024  # bytes of output


class Monitor:
    """Watches a cluster and gives snapshots of it; lives in the background loop.

    Attributes
    ----------
    run
        The run that was begun last.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.run: Run | None = None
        self._began = 0.0
        self._seconds: float | None = None
        self._output: deque[str] = deque()
        self._size = 0

    def begin(self, run: Run) -> None:
        """Take note that a run has begun."""
        self.run, self._began, self._seconds = run, time.time(), None
        self._output.clear()
        self._size = 0

    def end(self, run: Run) -> None:
        """Take note that a run is over."""
        if run is self.run:
            self._seconds = time.time() - self._began

    def see(self, event: Output | Display) -> None:
        """Keep the end of what the run's first shown rank prints."""
        if self.run is None or event.rank != self.shown_rank:
            return
        text = (
            event.data.decode(errors="replace")
            if isinstance(event, Output)
            else f"{event.data.get('text/plain', '')}\n"
        )
        self._output.append(text)
        self._size += len(text)
        while self._size > _KEPT and len(self._output) > 1:
            self._size -= len(self._output.popleft())

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
            "run": self._run(),
            "sent_bytes": sum(connection.sent_bytes for connection in controller.connections),
            "nodes": [
                {"node": node.node, "addr": node.addr, "gpu": node.gpu} for node in state.nodes
            ],
            "ranks": [self._rank(rank) for rank in state.ranks],
            "output": {"rank": self.shown_rank, "text": "".join(self._output)[-_KEPT:]},
        }

    @property
    def shown_rank(self) -> int:
        """The rank whose output a snapshot has."""
        return self.run.task.show[0] if self.run and self.run.task.show else 0

    def _run(self) -> ShownRun | None:
        run = self.run
        if run is None:
            return None
        word: Literal["running", "ok", "error", "interrupted"]
        if not run.finished:
            word = "running"
        elif run.stopped:
            word = "interrupted"
        else:
            word = "error" if run.failed else "ok"
        return {
            "id": run.id,
            "state": word,
            "background": run.in_background,
            "started": self._began,
            "seconds": self._seconds if self._seconds is not None else time.time() - self._began,
            "ranks": list(run.task.ranks),
            "title": run.task.title,
        }

    def _rank(self, rank: RankState) -> ShownRank:
        report: dict[str, Any] = self._controller.reports.get(rank.rank, {})
        node = self._controller.node(rank.rank)
        return {
            "rank": rank.rank,
            "node": rank.node,
            "phase": "gone" if rank.phase == "dead" else rank.phase,
            "utilisation": report.get("utilisation"),
            "memory": report.get("memory"),
            "gpu": node.ranks.index(rank.rank) if node.accelerators else None,
            "line": report.get("line", ""),
            "trouble": rank.trouble,
        }
