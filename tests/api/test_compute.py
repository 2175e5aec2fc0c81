from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import pytest

import jupyter_sky as sky
from jupyter_sky.api.call import Call
from jupyter_sky.api.compute import PendingCompute


@sky.compute
@sky.stdout(only="head")
def double(x: int, y: int = 0) -> int:
    """Double it."""
    return 2 * x + y


class Model:
    factor = 3

    @sky.compute
    def scale(self, x: int) -> int:
        return self.factor * x


class HerePool:
    """Two ranks that are this process."""

    def broadcast(self, pending: PendingCompute[Any]) -> list[Any]:
        call = pickle.dumps(pending.call())
        return [pickle.loads(call)() for _ in range(2)]

    def dispatch(self, pending: PendingCompute[Any]) -> Any:
        return pending.call()()


def test_at_sends_to_all_ranks_and_shift_to_one() -> None:
    pool = HerePool()
    assert double(2, y=1) @ pool == [5, 5]
    assert double(2) >> pool == 4
    assert Model().scale(2) @ pool == [6, 6]


def test_calling_runs_nothing() -> None:
    ran = []
    pending = sky.compute(ran.append)(1)
    assert ran == []
    assert "has not run: write" in repr(pending)
    assert sky.compute(ran.append).local(1) is None
    assert ran == [1]


def test_it_still_is_the_function_to_the_eye() -> None:
    assert double.__name__ == "double"
    assert double.__doc__ == "Double it."
    assert repr(double) == "<sky.compute double>"
    assert double.local(4) == 8
    assert sky.function is sky.compute


def test_what_can_be_imported_travels_by_name() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    assert pickle.loads(pickle.dumps(double(2))) == double(2)
    assert len(pickle.dumps(double(2).call())) < 250


def test_what_cannot_travels_whole() -> None:
    factor = 5

    @sky.compute
    def scale(x: int) -> int:
        return factor * x

    copy = cloudpickle.loads(cloudpickle.dumps(scale))
    assert copy is not scale
    assert copy.local(2) == 10
    assert copy.__name__ == "scale"


def test_wrong_use_says_what_to_type() -> None:
    with pytest.raises(sky.UsageError, match="above a function, not int"):
        sky.compute(3)  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match=r"write train\(\) @ pool"):
        double(1) @ None  # type: ignore[operator]
    with pytest.raises(sky.UsageError, match=r"write train\(\) >> pool"):
        double(1) >> [1]  # type: ignore[operator]
    pool = sky.ComputePool()
    with pytest.raises(sky.UsageError, match=r"not called: write double\(…\) @ pool"):
        double @ pool
    with pytest.raises(sky.UsageError, match=r"not called: write double\(…\) > pool"):
        double > pool  # noqa: B015
    with pytest.raises(sky.UsageError, match=r"write gather\(…\) >> pool"):
        (double(1) & double(2)) @ pool
    with pytest.raises(sky.UsageError, match=r"\[call > pool for call in calls\]"):
        (double(1) & double(2)) > pool  # noqa: B015
    with pytest.raises(sky.UsageError, match=r"list is no call .*gather\(\*calls\) >> pool"):
        sky.gather([double(1), double(2)])  # type: ignore[call-overload]


# -- what a rank calls -----------------------------------------------------------------------------


def test_what_a_function_yields_becomes_a_list() -> None:
    def numbers(n: int) -> Any:
        yield from range(n)

    async def awaited(n: int) -> int:
        return n

    async def later(n: int) -> Any:
        for each in range(n):
            yield each

    assert Call(numbers, (3,))() == [0, 1, 2]
    assert Call(awaited, (3,))() == 3
    assert Call(later, (3,))() == [0, 1, 2]


def test_the_first_decorator_is_the_outermost() -> None:
    def adds(letter: str) -> Any:
        return lambda function: lambda word: letter + function(word)

    assert Call(str.upper, ("x",), decorators=(adds("a"), adds("b")))() == "abX"
