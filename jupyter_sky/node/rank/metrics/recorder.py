"""Collects the metrics of a rank and sends them a few times a second, however often it logs.

Between two messages it keeps no more of each name than fits into a message. The longer a run takes,
the less often it sends, so that a run of days sends a few megabytes in total.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from jupyter_sky.node.rank.metrics import feeders
from jupyter_sky.transport.metrics import metric_log
from jupyter_sky.transport.metrics.series import Series, pack
from jupyter_sky.transport.protocol.events import Metrics

SOONEST, LATEST = 0.25, 5.0
"""Seconds between two messages: at the beginning of a run, and at most."""

_OF_AGE = 1 / 400  # fraction of a run's time between two messages
_POINTS = 2000  # buckets in the messages of all ranks, for all names together
_OF_RANK = 100  # least buckets in the message of a rank, however many ranks there are
_LEAST = 8  # least buckets of each name
_PROCESSES = 64  # of a script, beside one rank


class MetricRecorder:
    """Records the metrics of a rank.

    Parameters
    ----------
    rank
        The rank.
    send
        Sends an event to the agent; callable from any thread.
    """

    def __init__(self, rank: int, send: Callable[[Metrics], None]) -> None:
        self._rank = rank
        self._send = send
        self._pid = os.getpid()
        self._run: str | None = None
        self._began = 0.0
        self._room = self._limit = _POINTS
        self._pending: dict[int | None, dict[str, Series]] = {}
        self._steps: dict[tuple[int | None, str], int] = {}
        self._names: Counter[int | None] = Counter()
        self._has_warned = False
        # Reentrant: objects that are garbage-collected during logging may log something themselves.
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._wakes = threading.Event()
        self._thread: threading.Thread | None = None
        metric_log.set_sink(self.log, self.flush)
        feeders.install()

    def begin(self, run: str, ranks: int) -> None:
        """Count for a run from now on, in which so many ranks take part."""
        metric_log.begin_run()
        with self._lock:
            self._room = self._limit = max(_OF_RANK, _POINTS // max(1, ranks))
            self._run, self._began = run, time.monotonic()
            self._pending, self._steps, self._has_warned = {}, {}, False
            self._names.clear()

    def end(self) -> None:
        """Send the rest of the run's metrics; later ones belong to no run."""
        self.flush()
        with self._sending, self._lock:
            self._run = None

    def log(self, values: Mapping[str, float], step: float | None, of: int | None = None) -> bool:
        """Take figures, of a process of a script those of its own rank; returns at once.

        It returns whether they are of this process, and not of a child that the user's code has
        forked: its parent's curves are not its.
        """
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self._run is None:
                return True
            for name, value in values.items():
                count = self._steps.get((of, name))
                if count is None:
                    if not self._has_room(of):
                        self._warn()
                        continue
                    count = 0
                    self._names[of] += 1
                    self._limit = max(_LEAST, self._room // (len(self._steps) + 1))
                self._steps[of, name] = count + 1
                pending = self._pending.setdefault(of, {})
                series = pending.get(name)
                if series is None:
                    series = pending[name] = Series(self._limit)
                series.add(count if step is None else step, value)
        if self._thread is None:
            self._start()
        elif not self._wakes.is_set():
            self._wakes.set()
        return True

    def flush(self) -> None:
        """Send what was logged since the last message."""
        with self._sending:
            with self._lock:
                run, pending = self._run, self._pending
                self._pending = {}
            if run is None:
                return
            for of, series in pending.items():
                points = {name: pack(each.points()) for name, each in series.items()}
                counts = {name: each.count for name, each in series.items()}
                self._send(Metrics(self._rank, run, points, counts, of))

    def _has_room(self, of: int | None) -> bool:
        """Return whether there is room for another name."""
        is_known = of in self._names or len(self._names) < _PROCESSES
        return is_known and self._names[of] < metric_log.NAMES

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_often, name="sky-metrics", daemon=True
                )
                self._thread.start()
        self._wakes.set()

    def _send_often(self) -> None:
        while True:
            self._wakes.wait()
            age = time.monotonic() - self._began
            time.sleep(min(LATEST, max(SOONEST, age * _OF_AGE)))
            self._wakes.clear()
            try:
                self.flush()
            except OSError:
                return  # the agent is gone

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            print(
                f"sky.log: a run has at most {metric_log.NAMES} names; further ones are left out.",
                file=sys.stderr,
            )
