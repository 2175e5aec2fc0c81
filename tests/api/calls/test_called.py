"""What can be called on a cluster: functions, methods, and whatever else Python calls."""

from __future__ import annotations

import functools
import importlib
import operator
import pickle
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.errors import UsageError
from tests.api.calls.test_calls import double, join
from tests.conftest import shared_registry


def test_map_takes_any_function(pool: sky.ComputePool) -> None:
    assert pool.map(double, range(3)) == [0, 2, 4]
    assert pool.map(lambda x, y: x - y, [5, 7], (1, 2)) == [4, 5]


def test_submit_is_that_of_an_executor(pool: sky.ComputePool) -> None:
    futures = [pool.submit(double, 3), pool.submit(pow, 2, 3, mod=5), pool.submit(Adder(3).add, 1)]
    assert {future.result() for future in as_completed(futures)} == {6, 3, 4}
    with pytest.raises(UsageError, match=r"`pool\.submit\(train, 5\)`"):
        pool.submit(double(3))


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


class Model(Adder):
    """An iterator, which has methods with the decorator in all the ways that Python binds them."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise StopIteration

    @sky.compute
    def steps(self, n: int) -> Iterator[int]:
        yield from range(self.local, self.local + n)

    @sky.compute(timeout=60, retries=0)
    async def later(self, x: int) -> int:
        return self.local * x

    @sky.compute
    @classmethod
    def named(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @classmethod
    @sky.compute
    def named_too(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @sky.compute
    @staticmethod
    def minus(x: int) -> int:
        return -x


class Same(Model):
    @sky.compute
    def add(self, x: int) -> int:
        return 0

    def parents(self, x: int) -> Any:
        return super().add(x)


def test_a_method_with_the_decorator_is_called_as_a_function_is(pool: sky.ComputePool) -> None:
    add = Model(3).add
    assert add(1) >> pool == 4
    assert add(1) @ pool == [4, 4]
    assert (add(1) > pool).result() == 4
    assert (add(1) & add(2)) >> pool == (4, 5)
    assert add.local(1) == 4
    assert sky.compute(add)(1) >> pool == 4
    assert sky.compute(functools.partial(add, 1))() >> pool == 4
    assert pool.map(sky.compute(add), [1, 2]) == [4, 5]
    assert list(Model(3).steps(2) >> pool) == list(sky.compute(Model(3).steps)(2) >> pool) == [3, 4]
    assert Model(3).later(2) @ pool == [6, 6]
    assert (sky.compute(Model(3).later)(2).timeout, Model(3).later(2).retries) == (60, 0)
    assert Same(3).parents(1) >> pool == 4
    assert pool.map(lambda bound: bound.local(1), [add, Same(3).add]) == [4, 0]


def test_a_method_of_a_class_has_the_class(pool: sky.ComputePool) -> None:
    for named in (Same.named, Same(0).named):
        assert named(1) >> pool == named.local(1) == ("Same", 1)
    # What Python 3.13 makes of a class method around another decorator has no `local` of its own.
    for named in (Same.named, Same(0).named, Same.named_too):
        assert named(1) >> pool == ("Same", 1)
        assert pool.map(named, [1]) == [("Same", 1)]
    for minus in (Same.minus, Same(0).minus):
        assert minus(1) >> pool == minus.local(1) == -1


def test_a_function_with_the_decorator_can_have_it_twice(pool: sky.ComputePool) -> None:
    again = sky.compute(timeout=60)(double)
    assert again(2) >> pool == again.local(2) == 4
    assert again(2).timeout == 60


def test_bound_methods_are_alike_where_their_objects_are_the_same() -> None:
    model = Model(3)
    assert model.add == model.add
    assert len({model.add, model.add}) == 1
    assert model.add != Model(3).add
    assert pickle.loads(pickle.dumps(Same.named)) == Same.named


OWN_MODULE = """
import jupyter_sky as sky
RATE = 1
def rate(times=1): return RATE * times
@sky.compute
def rate_there(): return RATE
def hook(info):
    global entered
    entered = True
    yield
@sky.compute
def entered_there(): return entered
"""


def test_functions_of_the_users_own_modules(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script calls them, on nodes that do not see its files."""
    names = [f"mine_{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(OWN_MODULE)
    script = tmp_path / "script.py"
    script.write_text("import settings\ndef main():\n    settings.RATE = 2")
    monkeypatch.syspath_prepend(tmp_path)
    own, other = map(importlib.import_module, names)
    plugins = [sky.Plugin("own", around_process=own.hook)]
    pool = sky.ComputePool(provider=sky.Local(shares_files=False), nodes=2, plugins=plugins)
    try:
        with shared_registry(workplace), pool:
            assert own.entered_there() @ pool == [True, True]
            assert own.rate_there() @ pool == [1, 1]
            assert pool.map(own.rate, [3]) == [3]
            called = sky.compute(lambda functions: [each() for each in functions])
            assert called(iter([other.rate])) >> pool == [1]
            monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
            monkeypatch.setattr(sys.modules["__main__"], "settings", own, raising=False)
            own.RATE = 2
            assert own.rate_there() @ pool == [2, 2]
            own.RATE = 3
            assert pool.map(own.rate, [3]) == [9]
    finally:
        for name in names:
            del sys.modules[name]
