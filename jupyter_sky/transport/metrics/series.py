"""A series of points in bounded memory that keeps its extremes.

Up to a limit it keeps every point. Beyond it, each bucket stands for 2, 4, 8… consecutive points
and keeps the lowest and the highest of them: no outlier is lost, and a curve through them looks
like one through all points.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Iterator

_OF_BUCKET = 4  # the lowest and the highest point, each a step and a value


class Series:
    """The points of a curve, in order of arrival.

    Parameters
    ----------
    limit
        The most buckets; each is two points.

    Attributes
    ----------
    count
        How many points were added.
    gaps
        How many of them were not finite.
    first, last
        The first and the last of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(2, limit)
        self.count = 0
        self.gaps = 0
        self.first = self.last = (0.0, math.nan)
        self._width = 1  # points per bucket
        self._in_last = 1  # points in the last bucket so far; a bucket starts out full
        self._buckets = array.array("d")

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
            # Any comparison with NaN is false, and a number takes the place of an infinity.
            if not -math.inf < buckets[-3] <= value:
                buckets[-4], buckets[-3] = step, value
            if not math.inf > buckets[-1] >= value:
                buckets[-2], buckets[-1] = step, value

    def points(self) -> Iterator[tuple[float, float]]:
        """Yield the points that are kept, in order of arrival."""
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
        """Merge each two buckets into one."""
        old, new = self._buckets, array.array("d")
        for at in range(0, len(old), 2 * _OF_BUCKET):
            one = old[at : at + _OF_BUCKET]
            other = old[at + _OF_BUCKET : at + 2 * _OF_BUCKET]
            if other and math.isfinite(other[1]):
                if not -math.inf < one[1] <= other[1]:
                    one[0], one[1] = other[0], other[1]
                if not math.inf > one[3] >= other[3]:
                    one[2], one[3] = other[2], other[3]
            new.extend(one)
        if len(old) % (2 * _OF_BUCKET) == 0:
            self._in_last += self._width
        self._buckets = new
        self._width *= 2


def pack(points: Iterator[tuple[float, float]]) -> bytes:
    """Pack points as little-endian doubles, step and value in turn."""
    numbers = array.array("d")
    for point in points:
        numbers.extend(point)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpack(data: bytes) -> Iterator[tuple[float, float]]:
    """Yield the points that `pack` has packed; an incomplete one at the end is ignored."""
    numbers = array.array("d", data[: len(data) // 16 * 16])
    if sys.byteorder == "big":
        numbers.byteswap()
    yield from zip(numbers[::2], numbers[1::2], strict=True)
