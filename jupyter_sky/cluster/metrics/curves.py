"""The logged metrics of a run: a curve for each name and rank, within limits.

Events come in the background loop; tables are made in the user's thread.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

from jupyter_sky.cluster.snapshot import CurveView
from jupyter_sky.formatting import escaped
from jupyter_sky.transport.metrics.metric_log import LONGEST, NAMES
from jupyter_sky.transport.metrics.series import Series, unpack
from jupyter_sky.transport.protocol.events import Metrics

KEPT = 4096
"""Buckets of a curve, each of two points: up to so many figures a table has every one."""

KEPT_IN_ALL = 200_000
"""Buckets of all curves of a run, 32 bytes each."""

_SMALLEST = 16
_MOST_CURVES = 16_384
_DRAWN = 150  # buckets of a drawn curve
_DRAWN_IN_ALL = 3000
_MOST_DRAWN = 512  # curves
_DRAWN_EVERY = 0.5  # seconds
_DIGITS = 5


class _Curve:
    """A curve in two forms: as it is kept, and as it is drawn."""

    def __init__(self, kept: int, drawn: int) -> None:
        self.kept = Series(kept)
        self.drawn = Series(drawn)


class Curves:
    """The curves of one run.

    Parameters
    ----------
    before, step
        The curves of the attempt before, and the step of the checkpoint that this one begins with:
        up to there they are this one's as well, as it does not do these steps again.
    """

    def __init__(self, before: Curves | None = None, step: float | None = None) -> None:
        self._curves: dict[tuple[str, int], _Curve] = {}
        self._before: set[tuple[str, int]] = set()  # whose points are all of the attempt before
        self._since = step or 0.0
        self._kept, self._drawn = KEPT, _DRAWN
        self._lock = threading.Lock()
        self._version = 0
        self._view: tuple[int, float, list[CurveView]] = (0, -math.inf, [])
        if before is not None and step is not None:
            self._go_on(before, step)

    @property
    def has_any(self) -> bool:
        """Whether anything was logged."""
        return bool(self._curves)

    @property
    def last_step(self) -> float | None:
        """The last step that anything was logged for; ``None`` if nothing was."""
        with self._lock:
            return max((each.kept.last[0] for each in self._curves.values()), default=None)

    def add(self, event: Metrics) -> None:
        """Add metrics of a rank."""
        with self._lock:
            self._version += 1
            for name, data in list(event.points.items())[:NAMES]:
                rank = event.rank if event.of is None else event.of
                key = (escaped(name)[:LONGEST], rank)
                curve = self._curve(key)
                if curve is None:
                    continue
                before = curve.kept.count
                for step, value in unpack(data):
                    if key in self._before:
                        curve = self._first_of_its_own(key, step)
                        before = curve.kept.count
                    if math.isfinite(step):
                        curve.kept.add(step, value)
                        curve.drawn.add(step, value)
                # The rank may have left out values between the extremes.
                added = curve.kept.count - before
                curve.kept.count += max(0, event.counts.get(name, 0) - added)

    def _curve(self, key: tuple[str, int]) -> _Curve | None:
        if key not in self._curves:
            if len(self._curves) >= _MOST_CURVES:
                return None
            # Shrink the curves only when their number has doubled, not for each new one.
            if (count := len(self._curves) + 1) & (count - 1) == 0:
                self._kept = max(_SMALLEST, min(KEPT, KEPT_IN_ALL // (2 * count)))
                self._drawn = max(_SMALLEST, min(_DRAWN, _DRAWN_IN_ALL // (2 * count)))
                for each in self._curves.values():
                    each.kept.shrink(self._kept)
                    each.drawn.shrink(self._drawn)
            self._curves[key] = _Curve(self._kept, self._drawn)
        return self._curves[key]

    def _go_on(self, before: Curves, step: float) -> None:
        with before._lock:
            self._kept, self._drawn = before._kept, before._drawn
            for key, old in before._curves.items():
                new = _Curve(self._kept, self._drawn)
                for series, former in ((new.kept, old.kept), (new.drawn, old.drawn)):
                    for point in former.points():
                        if point[0] <= step:
                            series.add(*point)
                if new.kept.count:
                    self._curves[key] = new
        self._before = set(self._curves)
        self._version = 1

    def _first_of_its_own(self, key: tuple[str, int], step: float) -> _Curve:
        """Return the curve of the attempt before, unless its steps are done again after all."""
        self._before.discard(key)
        # Logged without a step, values count from 0 in each attempt.
        if step <= self._since:
            self._curves[key] = _Curve(self._kept, self._drawn)
        return self._curves[key]

    def view(self, is_last: bool = False) -> list[CurveView]:
        """Return the curves for snapshots, recomputed at most twice a second."""
        version, at, view = self._view
        now = time.monotonic()
        if version == self._version or (now - at < _DRAWN_EVERY and not is_last):
            return view
        with self._lock:
            # Names in order of arrival, grouped by rank: the head's first.
            keys = sorted(self._curves, key=lambda key: key[1])[:_MOST_DRAWN]
            view = [_drawn(name, rank, self._curves[name, rank]) for name, rank in keys]
            self._view = (self._version, now, view)
        return view

    def rows(self) -> dict[str, list[Any]]:
        """Return a table as lists: the rank, the step, and a column for each name.

        A row has the values of a rank for a step, or ``nan`` for names without a value.
        """
        with self._lock:
            keys = sorted(self._curves, key=lambda key: key[1])
            names = list(dict.fromkeys(name for name, _ in keys))
            rows: dict[tuple[int, float, int], dict[str, float]] = {}
            for (name, rank), curve in self._curves.items():
                for step, again, value in _numbered(curve.kept.points()):
                    rows.setdefault((rank, step, again), {})[name] = value
        ordered = sorted(rows)
        table: dict[str, list[Any]] = {
            "rank": [rank for rank, _, _ in ordered],
            "step": [int(step) if step.is_integer() else step for _, step, _ in ordered],
        }
        for name in names:
            column = name if name not in ("rank", "step") else f"{name}_logged"
            table[column] = [rows[key].get(name, math.nan) for key in ordered]
        return table

    def frame(self) -> Any:
        """Return the table as a DataFrame; without pandas, as a dictionary of lists."""
        try:
            pd: Any = importlib.import_module("pandas")
        except ImportError:
            return self.rows()
        return pd.DataFrame(self.rows(), columns=None if self.has_any else ["rank", "step"])

    @property
    def left_out(self) -> int:
        """How many logged values the table does not have."""
        with self._lock:
            return sum(
                max(0, each.kept.count - sum(1 for _ in each.kept.points()))
                for each in self._curves.values()
            )


def _numbered(
    points: Iterator[tuple[float, float]],
) -> Iterator[tuple[float, int, float]]:
    """Yield step, number of earlier points with that step, and value."""
    seen: dict[float, int] = {}
    for step, value in points:
        again = seen.get(step, 0)
        seen[step] = again + 1
        yield step, again, value


def _drawn(name: str, rank: int, curve: _Curve) -> CurveView:
    points = list(curve.drawn.points())
    # So that the curve shows its true first and last points.
    if points and points[0][0] > curve.drawn.first[0]:
        points.insert(0, curve.drawn.first)
    if points and points[-1][0] < curve.drawn.last[0]:
        points.append(curve.drawn.last)
    return {
        "name": name,
        "rank": rank,
        "steps": [_short(step) or 0 for step, _ in points],
        "values": [_short(value) for _, value in points],
        "last": _short(curve.drawn.last[1]),
        "count": curve.kept.count,
        "gaps": curve.kept.gaps,
    }


def _short(number: float) -> float | None:
    """Return a number, rounded to the visible digits, for JSON."""
    if not math.isfinite(number):
        return None
    if number.is_integer() and abs(number) < 1e15:
        return int(number)
    return float(f"{number:.{_DIGITS}g}")
