"""Series that stay small: what they keep of very many points."""

from __future__ import annotations

import math
import random

import pytest

from jupyter_sky.transport.metrics.series import Series, pack, unpack


def _series(values: list[float], limit: int) -> Series:
    series = Series(limit)
    for step, value in enumerate(values):
        series.add(step, value)
    return series


def test_few_points_are_all_kept() -> None:
    series = _series([3.0, 1.0, 2.0], limit=4)
    assert list(series.points()) == [(0, 3), (1, 1), (2, 2)]


@pytest.mark.parametrize("count", [5, 8, 9, 1000, 4097])
def test_many_points_keep_their_extremes_and_order(count: int) -> None:
    numbers = random.Random(count)
    values = [numbers.gauss(0, 1) for _ in range(count)]
    values[count // 2], values[count // 3] = 100.0, -100.0
    series = _series(values, limit=4)
    points = list(series.points())
    assert len(points) <= 8
    assert points == sorted(points)
    assert (count // 2, 100.0) in points and (count // 3, -100.0) in points
    assert all(values[int(step)] == value for step, value in points)
    assert (series.count, series.last) == (count, (count - 1, values[-1]))
    series.shrink(2)
    assert {100.0, -100.0} <= {value for _, value in series.points()}
    assert len(list(series.points())) <= 4


def test_numbers_that_are_none_hide_no_others() -> None:
    series = _series([math.nan, 1.0, math.nan, math.nan, 5.0, math.nan, 2.0, 0.5], limit=2)
    assert {value for _, value in series.points()} >= {0.5, 5.0}
    assert series.gaps == 4
    only = _series([math.nan] * 9, limit=2)
    assert all(math.isnan(value) for _, value in only.points())


def test_the_same_step_twice_is_two_points() -> None:
    series = Series(1)
    series.add(7, 1.0)
    series.add(7, 2.0)
    assert list(series.points()) == [(7, 1.0), (7, 2.0)]


def test_points_go_over_the_wire() -> None:
    points = [(0.0, 1.5), (1.0, -math.inf), (2.5, 1e300)]
    assert list(unpack(pack(iter(points)))) == points
    assert list(unpack(pack(iter(points))[:-3])) == points[:2]
    assert list(unpack(b"")) == []


def test_a_number_takes_the_place_of_an_infinity() -> None:
    for infinity in (math.inf, -math.inf, math.nan):
        series = Series(2)
        for step in range(64):
            series.add(step, infinity if step % 8 == 0 else float(step))
        # Each bucket begins with one, whose place its lowest and highest number take.
        assert [value for _, value in series.points()] == [1.0, 31.0, 33.0, 63.0]
        assert (series.count, series.gaps) == (64, 8)
