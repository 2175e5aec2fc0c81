"""Counts the tasks of Dask's scheduler, total and done, and reports changes to notebooks."""

from __future__ import annotations

import time
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

TOPIC = "jupyter-sky-tasks"
"""Under what clients hear of it: a dictionary with ``done``, ``total`` and ``seconds``."""

_EVERY = 0.5  # seconds
_BEGINS = {"waiting", "queued", "no-worker", "processing"}
_ENDS = {"memory", "erred", "forgotten"}


class TaskCounter(SchedulerPlugin):
    """Counts the tasks since the scheduler was last idle.

    Parameters
    ----------
    scheduler
        The scheduler.
    """

    name = "jupyter-sky-tasks"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._open: set[Any] = set()
        self._total = 0
        self._began = 0.0
        self._tells = False

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count a task that begins or ends; called for every task, so it does little."""
        if finish in _BEGINS:
            if not self._open:
                # If tasks follow others at once, idleness in between may not have been reported.
                self._total, self._began = 0, time.monotonic()
            if key not in self._open:
                self._open.add(key)
                self._total += 1
        elif finish in _ENDS and key in self._open:
            self._open.remove(key)
        else:
            return
        if not self._tells:
            self._tells = True
            self._scheduler.loop.call_later(_EVERY, self._tell)

    def _tell(self) -> None:
        seconds = time.monotonic() - self._began
        told = {"done": self._total - len(self._open), "total": self._total, "seconds": seconds}
        self._scheduler.log_event(TOPIC, told)
        if self._open:
            # Report even if no task ends for a long time, since the estimate changes.
            self._scheduler.loop.call_later(_EVERY, self._tell)
        else:
            self._tells = False
