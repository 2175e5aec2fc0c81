"""Parts of values: two values that are not equal have other parts, and equal ones the same."""

from __future__ import annotations

import collections
import enum
import functools
import io
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_sky.node.rank.comparison.parts import find, parts
from tests.installed import on_first_use

torch, np, pd = on_first_use("torch"), on_first_use("numpy"), on_first_use("pandas")


class _Colour(enum.Enum):
    RED = 1
    BLUE = 2


class _Slots:
    __slots__ = ("__dict__", "x")

    def __init__(self, x: int) -> None:
        self.x, self.y = x, 1


class _Reduced:
    """Says itself how it is pickled, which has the address of a tensor's storage."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __reduce__(self) -> Any:
        return _Reduced, (self.x,)


def _entangled(number: int) -> Any:
    """Functions that reach each other on more ways than can be followed."""
    functions: list[Any] = []

    def one(some: Any, same: Any, at: int) -> Callable[[], Any]:
        return lambda: (some, same, at)

    for at in range(30):
        functions.append(one(_Reduced(functions), _Reduced(functions), at * number))
    return functions


class _Attributes:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def _scaled(factor: Any) -> Callable[[Any], Any]:
    return lambda value: value * factor


def _function(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(source, names)
    return names["f"]


def _partly_trained(trains: bool) -> Any:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    model[0].train(trains)
    return model


def _seen(value: Any) -> list[tuple[str, str, str]]:
    return sorted(
        (each["path"], each["what"], each["digest"])
        for each in (part.seen() for part in parts("v", value))
    )


_LONG = "k" * 300


@pytest.mark.parametrize(
    "make",
    [
        lambda n: _function(f"def f(): return {n}.5"),
        lambda n: _function(f"def f():\n def inner(): return {n}.5\n return inner()"),
        lambda n: _function(f"def f(x={n}): return x"),
        lambda n: _function(f"def f(*, x={n}): return x"),
        lambda n: _scaled(n),
        lambda n: _scaled(torch.ones(2) * n),
        lambda n: functools.partial(_scaled, n),
        lambda n: functools.partial(_scaled(n)),
        lambda n: ValueError(n),
        lambda n: collections.deque(_entangled(n)),
        lambda n: _Reduced(torch.ones(2) * n),
        lambda n: _Slots(n),
        lambda n: io.BytesIO(bytes(n)),
        lambda n: io.StringIO("a" * n),
        lambda n: _Attributes(cache={}) if n == 1 else _Attributes(),
        lambda n: {_Colour.RED: n, _Colour.BLUE: 3 - n},
        lambda n: {frozenset([1]): n, frozenset([2]): 3 - n},
        lambda n: {b"a": n, b"b": 3 - n},
        lambda n: {f"{_LONG}a": n, f"{_LONG}b": 3 - n},
        lambda n: {"a b": n, "a  b": 3 - n},
        lambda n: {_LONG[:90]: {_LONG[:90]: {"deep": {"a": n, "b": 3 - n}}}},
        lambda n: np.ma.array([1.0, 2.0], mask=[n == 1, n == 2]),
        lambda n: pd.DataFrame({"a": [1]}, index=pd.Index([0], name=f"i{n}")),
        lambda n: _partly_trained(n == 1),
    ],
)
def test_other_values_have_other_parts(make: Callable[[int], Any]) -> None:
    one = _seen(make(1))
    assert all(digest for _, _, digest in one)
    assert one == _seen(make(1))
    assert one != _seen(make(2))


def test_no_two_parts_of_a_value_have_the_same_path() -> None:
    keys = [*_Colour, None, b"a", 1.5, (1, 2), (1, _Colour.RED), frozenset([1]), frozenset([2])]
    keys += [torch.float32, torch.float16, f"{_LONG}a", f"{_LONG}b", "a b", "a  b"]
    value = {key: number for number, key in enumerate(keys)}
    paths = [each.seen()["path"] for each in parts("v", value)]
    assert len(set(paths)) == len(paths) == 1 + len(keys)
    assert max(map(len, paths)) <= 200
    assert [find("v", value, path) for path in paths] == [value, *value.values()]


def test_what_contains_itself_has_parts() -> None:
    own: dict[str, Any] = {}
    own["self"] = own
    assert _seen(_Attributes(own=own))

    def calls_itself() -> Any:
        return calls_itself

    assert _seen(calls_itself)
    assert _seen(collections.deque([calls_itself]))


def test_what_has_no_digest_is_known_at_once_however_much_it_holds() -> None:
    functions = _entangled(1)
    functions.append(_scaled(threading.Lock()))
    [(_, _, digest)] = _seen(collections.deque(functions))
    assert digest == ""


def test_a_thread_is_a_part_without_a_digest() -> None:
    thread = threading.Thread(target=print)
    assert _seen(thread) == [("v", "threading.Thread", "")]
    found = {path: digest for path, _, digest in _seen(_Attributes(number=1, thread=thread))}
    assert list(found) == ["v", "v.number", "v.thread"]
    assert [bool(digest) for digest in found.values()] == [True, True, False]
    assert _seen(collections.deque([thread])) == [("v", "collections.deque", "")]


class _Output(io.TextIOWrapper):
    """A stream like that of a rank, which has attributes of its own."""


def test_what_a_rank_prints_to_is_a_part_without_a_digest() -> None:
    stream = _Output(io.BytesIO())
    stream.pipes = {1: os.getpid()}  # type: ignore[attr-defined]
    found = {path: digest for path, _, digest in _seen(_Attributes(n=1, fp=_Attributes(to=stream)))}
    assert list(found) == ["v", "v.fp", "v.fp.to", "v.n"]
    assert [path for path, digest in found.items() if not digest] == ["v.fp.to"]
