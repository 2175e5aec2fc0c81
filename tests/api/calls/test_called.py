"""What can be called on a cluster: functions, methods, and whatever else Python calls."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest

import jupyter_sky as sky
from tests.api.calls.test_calls import double, join


def test_map_takes_any_function(pool: sky.ComputePool) -> None:
    assert pool.map(double, range(3)) == [0, 2, 4]
    assert pool.map(lambda x, y: x - y, [5, 7], (1, 2)) == [4, 5]


class Adder:
    """Is called, and has an attribute of a name that what calls it has too."""

    def __init__(self, local: int) -> None:
        self.local = local

    def __call__(self, x: int) -> int:
        return self.local + x

    @sky.compute
    def add(self, x: int) -> int:
        return self.local + x


def test_what_is_called_needs_no_name(pool: sky.ComputePool) -> None:
    assert pool.map(functools.partial(pow, 2), [1, 2]) == [2, 4]
    assert pool.map(operator.itemgetter(1), ["ab", "cd"]) == ["b", "d"]
    assert pool.map(Adder(3), [1, 2]) == [4, 5]
    three: Any = sky.compute(functools.partial(double.local, 3))()
    assert three >> pool == 6
    assert three @ pool == [6, 6]
    assert (three > pool).result() == 6
    with pytest.raises(TypeError, match="item") as caught:
        pool.map(operator.itemgetter(1), ["ab", 1])
    assert caught.value.__notes__[-1] == "in call 2 of 2: itemgetter(1)"


def test_map_knows_what_is_bound_to_a_function_with_the_decorator(pool: sky.ComputePool) -> None:
    assert pool.map(Adder(3).add, [1, 2]) == [4, 5]
    assert pool.map(functools.partial(join, b="b"), ["a", ""]) == ["ab", "b"]
    assert pool.map(functools.partial(Adder(3).add), [1]) == [4]
