"""What is common to all measurements: the row of the table, and how to get a number one can trust.

Times of one machine vary with what else it does. So what is compared is measured in turns within
one run, and a median is taken: a ratio then holds although the times themselves may not.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """What the design asks of a row.

    Attributes
    ----------
    limit
        The value not to go above.
    ratio
        Whether it limits the row's ratio, and not the value itself.
    least
        Whether it is the value not to fall below.
    """

    limit: float
    ratio: bool = False
    least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.limit:g}{' ×' if self.ratio else ''}"


@dataclass(frozen=True)
class Base:
    """What a row is compared with, measured in the same run and in the same unit."""

    name: str
    value: float


@dataclass(frozen=True)
class Point:
    """That a row is a point of a curve: its name, and where on the axis from left to right."""

    curve: str
    x: float


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes
    ----------
    what
        What was measured.
    ours
        The figure, in ``unit``; ``None`` when it could not be taken, and ``note`` says why.
    base
        What it is compared with.
    peers
        The same figure of others, or in words why there is none.
    note
        What else there is to know about it.
    point
        Of which curve it is a point, if of any.
    """

    what: str
    ours: float | None
    unit: str
    target: Target | None = None
    base: Base | None = None
    peers: Mapping[str, float | str] = field(default_factory=dict)
    note: str = ""
    point: Point | None = None

    @property
    def ratio(self) -> float | None:
        """The figure over what it is compared with."""
        return self.ours / self.base.value if self.ours is not None and self.base else None

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; ``None`` without a target or a figure."""
        value = self.ratio if self.target and self.target.ratio else self.ours
        if self.target is None or value is None:
            return None
        return value >= self.target.limit if self.target.least else value <= self.target.limit


def unmeasured(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose figure could not be taken."""
    return [row for row in rows if row.ours is None]


def missed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that do not reach their target."""
    return [row for row in rows if row.reached is False]


def fastest(times: Mapping[str, float | str]) -> Base | None:
    """Return the peer that took the shortest time, if any was measured."""
    measured = {name: value for name, value in times.items() if not isinstance(value, str)}
    name = min(measured, key=measured.__getitem__, default=None)
    return None if name is None else Base(name, measured[name])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that so many percent of ``values`` do not exceed."""
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.monotonic()
    function()
    return time.monotonic() - started


def alternate(*measurements: Callable[[], T], rounds: int) -> list[list[T]]:
    """Take several measurements in turns: A, B, A, B, …; return the values of each."""
    values: list[list[T]] = [[] for _ in measurements]
    for _ in range(rounds):
        for taken, measurement in zip(values, measurements, strict=True):
            taken.append(measurement())
    return values


def interpreter(code: str) -> float:
    """Return how long a fresh interpreter takes to run ``code``, from its start to its end."""
    return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))


def number(value: float) -> str:
    """Return a figure with as many digits as it is good for."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def spread(values: Sequence[float], unit: str = "s", factor: float = 1.0) -> str:
    """Return median and extremes in words, for a note."""
    low, middle, high = (
        number(factor * value) for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} {unit} ({low} to {high}, n = {len(values)})"
