"""Python's search for garbage is as it was after values were packed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from jupyter_sky.serialization.garbage import not_searched_for


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def fail() -> None:
    with not_searched_for():
        assert not gc.isenabled()
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_on", [True, False])
def test_the_search_is_as_the_user_has_it_afterwards(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    with not_searched_for(), not_searched_for():
        assert not gc.isenabled()
    assert gc.isenabled() is is_on
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert gc.isenabled() is is_on
