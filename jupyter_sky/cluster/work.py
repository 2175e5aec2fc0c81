"""What a cluster does beside its runs, as far as that is said: tasks of Dask, for instance."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jupyter_sky.cluster.snapshot import ProgressView, RunState, RunView


@dataclass(frozen=True)
class _Shown:
    id: str
    title: str
    started: float
    since: float
    progress: ProgressView
    stop: Callable[[], None]


class Work:
    """Work that is shown as a run is; to be told from any thread.

    Parameters
    ----------
    changed
        Called after each change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._shown: _Shown | None = None

    def show(self, title: str, progress: ProgressView, stop: Callable[[], None]) -> None:
        """Show how far the work is; ``stop`` is called, from any thread, when the user stops it."""
        shown = self._shown
        if shown is None or shown.title != title:
            identity = uuid.uuid4().hex[:12]
            shown = _Shown(identity, title, time.time(), time.monotonic(), progress, stop)
        self._shown = replace(shown, progress=progress, stop=stop)
        self._changed()

    def end(self) -> None:
        """Show no work: it is done."""
        if self._shown is not None:
            self._shown = None
            self._changed()

    def stop(self, run: str | None = None) -> bool:
        """Stop it; return whether there was any, or whether it is called as this ``run`` is."""
        shown = self._shown
        if shown is None or run not in (None, shown.id):
            return False
        shown.stop()
        return True

    def view(self, ranks: Sequence[int]) -> RunView | None:
        """Return it as snapshots have it; ``None`` while nothing is shown."""
        shown = self._shown
        if shown is None:
            return None
        return RunView(
            id=shown.id,
            state=RunState.RUNNING,
            background=True,
            started=shown.started,
            seconds=time.monotonic() - shown.since,
            ranks=list(ranks),
            shown=[],
            title=shown.title,
            cell=None,
            progress=shown.progress,
            cost=None,
            trouble=None,
            where=None,
            attempt=None,
        )
