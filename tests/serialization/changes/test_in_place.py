"""What came back is compared with what is there without another copy of it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from jupyter_sky.serialization.changes import in_place
from tests.installed import on_first_use

numpy = on_first_use("numpy")

LARGE = 8_000_000


def large(last: int = 0) -> Any:
    found = numpy.zeros(LARGE, "u1")
    found[-1] = last
    return found


@pytest.mark.parametrize(
    ("own", "copy", "is_same"),
    [
        ([1], [2, large()], False),
        ([large(), 1], [large(), 1], True),
        ([large(), 1], [large(), 2], False),
        ([large()], [large(1)], False),
        ([large()], [large()[1:]], False),
    ],
    ids=["a new array", "nothing", "a number", "the last item", "the size"],
)
def test_large_arrays_are_compared_where_they_lie(own: Any, copy: Any, is_same: bool) -> None:
    tracemalloc.start()
    try:
        change = in_place.change(own, copy, in_place.Links({}, {}))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (change is None) == is_same
    assert most < LARGE / 2
