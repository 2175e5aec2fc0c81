"""What a cell has changed in a namespace."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from jupyter_sky.analysis.namespace_diff import LastObjects, NamespaceDiff
from tests.installed import on_first_use

numpy = on_first_use("numpy")

BOUND_AGAIN = {
    "a number": ("x = float('0.5')", "x = x * 2\nx = x * 5"),
    "a text": ("x = 'ab' * 50", "for _ in range(2): x += 'x'"),
    "a scalar of NumPy": ("x = numpy.float64(0.5)", "for _ in range(4): x = x * 2"),
    "an object": ("class A: pass\nx = A()", "for _ in range(4): x = A()"),
    "a pair": ("x = (0, 'a')", "for _ in range(4): x = (x[0] + 1, 'a')"),
    "a time": ("import datetime as d\nx = d.date(2020, 1, 1)", "x += d.timedelta(1)\n" * 4),
}


def test_what_is_new_changed_and_gone() -> None:
    names: dict[str, Any] = {"same": [1], "other": [1], "gone": 1}
    diff = NamespaceDiff(names)
    names["same"].append(2)
    names["other"] = [1]
    names["new"] = None
    del names["gone"]
    assert diff.changed() == {"other", "new"}
    assert diff.deleted() == {"gone"}


def test_what_ipython_numbers_with_each_cell_and_what_is_no_name_is_no_change() -> None:
    history: dict[Any, Any] = {f"_{n}": n for n in range(1000)}
    history |= {f"_i{n}": str(n) for n in range(1000)} | {5: "five", None: 0}
    kept = {"_", "__", "_i", "_i3d", "_3d", "_x1", "x_1", "_ii", ""}
    names: dict[Any, Any] = {}
    nothing = NamespaceDiff(names)
    names.update(history)
    names.update(dict.fromkeys(kept))
    assert nothing.changed() == kept
    everything = NamespaceDiff(names)
    names.clear()
    assert everything.deleted() == kept


@pytest.mark.parametrize("begin, cell", BOUND_AGAIN.values(), ids=BOUND_AGAIN.keys())
def test_what_is_bound_several_times_has_changed(begin: str, cell: str) -> None:
    """The former object is gone by then, so that the last one may have its address."""
    names: dict[str, Any] = {"numpy": numpy}
    exec(begin, names)
    found = []
    for _ in range(20):
        diff = NamespaceDiff(names)
        exec(cell, names)
        found.append("x" in diff.changed())
        exec(begin, names)
    assert all(found)


def test_what_may_be_large_is_not_kept() -> None:
    class Large:
        pass

    parts = [Large(), Large(), Large()]
    gone = [weakref.ref(each) for each in parts]
    names: dict[str, Any] = {"x": parts[0], "xs": [parts[1]], "by": {"a": parts[2]}}
    diff = NamespaceDiff(names)
    parts.clear()
    names.update(x=0, xs=[], by={})
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    assert diff.changed() == {"x", "xs", "by"}


def test_what_is_watched_can_be_done_as_before() -> None:
    names: dict[str, Any] = {"x": numpy.zeros(3), "xs": []}
    diff = NamespaceDiff(names)
    names["x"].resize(5, refcheck=False)
    names["xs"].append(part := numpy.zeros(3))
    gone = weakref.ref(part)
    del part, names["xs"]
    assert gone() is None
    assert diff.changed() == set()


def test_what_is_nested_deeply_is_looked_at_only_from_outside() -> None:
    nested: tuple[Any, ...] = ()
    for _ in range(5000):
        nested = (1, nested)
    assert NamespaceDiff({"x": nested}).changed() == set()


def test_names_are_found_that_are_bound_to_other_objects_than_last() -> None:
    class Model:
        pass

    last = LastObjects()
    namespace: dict[str, Any] = {"model": Model(), "few": [], "number": 1000, "gone": 1}
    namespace["large"] = [Model()]
    last.note([*namespace, "unknown"], namespace)
    assert last.changed(namespace) == set()
    del namespace["gone"]
    namespace["unknown"] = 1
    assert last.changed(namespace) == set()
    namespace["gone"] = 1
    assert last.changed(namespace) == set()
    model = weakref.ref(namespace["large"][0])
    namespace.update(model=Model(), few=[], number=int("1000"), large=[])
    assert last.changed(namespace) == {"model", "few", "number", "large"}
    assert model() is None  # nothing large is kept
    last.note(["few"], namespace)
    namespace["few"] = None
    namespace["few"] = []  # at another address than the one that was noted
    assert "few" in last.changed(namespace)
    # What was small, and is not any more.
    namespace["few"].append(Model())
    model = weakref.ref(namespace["few"][0])
    last.note([], namespace)
    namespace["few"] = None
    assert model() is None
