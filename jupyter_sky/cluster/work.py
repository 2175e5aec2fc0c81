"""Work on a cluster outside runs, such as tasks of Dask, as far as it is reported."""

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
    """Work that is shown like a run; can be updated from any thread.

    Parameters
    ----------
    changed
        Called after each change.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._shown: _Shown | None = None

    def show(self, title: str, progress: ProgressView, stop: Callable[[], None]) -> None:
        """Show the progress of the work; ``stop`` is called if the user stops it."""
        shown = self._shown
        if shown is None or shown.title != title:
            identity = uuid.uuid4().hex[:12]
            shown = _Shown(identity, title, time.time(), time.monotonic(), progress, stop)
        self._shown = replace(shown, progress=progress, stop=stop)
        self._changed()

    def end(self) -> None:
        """Stop showing it: the work is done."""
        if self._shown is not None:
            self._shown = None
            self._changed()

    def stop(self, run: str | None = None) -> bool:
        """Stop the work (with the id ``run``, if given); return whether there was any."""
        shown = self._shown
        if shown is None or run not in (None, shown.id):
            return False
        shown.stop()
        return True

    def view(self, ranks: Sequence[int]) -> RunView | None:
        """Return it in the form of snapshots; ``None`` while nothing is shown."""
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
            warns=False,
            attempt=None,
            earlier=[],
        )
