"""A series of points that stays small however many points there are, and keeps its extremes.

Up to a limit it has every point. From then on each bucket stands for 2, 4, 8… points that follow
one another, by the lowest and the highest of them: an outlier is never lost, and a curve that is
drawn through them looks as one through all points does.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Iterator

_OF_BUCKET = 4  # lowest point and highest point, each a step and a value


class Series:
    """Points of a curve, in the order in which they came.

    Parameters
    ----------
    limit
        Buckets at most; each is two points.

    Attributes
    ----------
    count
        How many points it was given.
    gaps
        How many of them were no finite number.
    first, last
        The first and the last of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(2, limit)
        self.count = 0
        self.gaps = 0
        self.first = self.last = (0.0, math.nan)
        self._width = 1  # points that a bucket stands for
        self._in_last = 1  # points in the last bucket so far; the first one is full
        self._buckets = array.array("d")

    @property
    def is_exact(self) -> bool:
        """Whether it has all points that it was given."""
        return self._width == 1

    def add(self, step: float, value: float) -> None:
        """Add a point."""
        self.last = (step, value)
        if not self.count:
            self.first = self.last
        self.count += 1
        is_finite = -math.inf < value < math.inf
        if not is_finite:
            self.gaps += 1
        if self._in_last >= self._width and len(self._buckets) >= _OF_BUCKET * self.limit:
            self._halve()
        if self._in_last >= self._width:
            self._buckets.extend((step, value, step, value))
            self._in_last = 1
            return
        self._in_last += 1
        if is_finite:
            buckets = self._buckets
            # A comparison with what is no number is false.
            if not buckets[-3] <= value:
                buckets[-4], buckets[-3] = step, value
            if not buckets[-1] >= value:
                buckets[-2], buckets[-1] = step, value

    def points(self) -> Iterator[tuple[float, float]]:
        """Yield the points that are kept, in the order in which they came."""
        buckets = self._buckets
        for at in range(0, len(buckets), _OF_BUCKET):
            low, high = (buckets[at], buckets[at + 1]), (buckets[at + 2], buckets[at + 3])
            if low == high or low[1] != low[1]:
                yield low
            else:
                yield min(low, high)
                yield max(low, high)

    def shrink(self, limit: int) -> None:
        """Lower the limit."""
        self.limit = min(self.limit, max(2, limit))
        while len(self._buckets) > _OF_BUCKET * self.limit:
            self._halve()

    def _halve(self) -> None:
        """Make one bucket of each two."""
        old, new = self._buckets, array.array("d")
        for at in range(0, len(old), 2 * _OF_BUCKET):
            one = old[at : at + _OF_BUCKET]
            other = old[at + _OF_BUCKET : at + 2 * _OF_BUCKET]
            if other and not one[1] <= other[1] and other[1] == other[1]:
                one[0], one[1] = other[0], other[1]
            if other and not one[3] >= other[3] and other[3] == other[3]:
                one[2], one[3] = other[2], other[3]
            new.extend(one)
        if len(old) % (2 * _OF_BUCKET) == 0:
            self._in_last += self._width
        self._buckets = new
        self._width *= 2


def pack(points: Iterator[tuple[float, float]]) -> bytes:
    """Return points as doubles, step and value in turn, the lowest byte first."""
    numbers = array.array("d")
    for point in points:
        numbers.extend(point)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpack(data: bytes) -> Iterator[tuple[float, float]]:
    """Yield the points in what `pack` has returned; what is left over is none."""
    numbers = array.array("d", data[: len(data) // 16 * 16])
    if sys.byteorder == "big":
        numbers.byteswap()
    yield from zip(numbers[::2], numbers[1::2], strict=True)
