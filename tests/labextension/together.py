"""What files share that run one after the other: it is ended when the last of them is over.

A fixture of scope "session" would last longer. But no event loop can run in a process in which
Playwright is up, and other files need theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import pytest

from tests.schedule import group

T = TypeVar("T")

_made: dict[Callable[[], Any], Any] = {}
_ends = ExitStack()


def once(make: Callable[[], AbstractContextManager[T]]) -> T:
    """Return what was made for an earlier file of the group, or make it."""
    if make not in _made:
        _made[make] = _ends.enter_context(make())
    return _made[make]  # type: ignore[no-any-return]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End it behind the fixtures of the group's last test."""
    try:
        return (yield)
    finally:
        if nextitem is None or group(nextitem.nodeid) != group(item.nodeid):
            _end()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """End it where tests were broken off."""
    _end()


def _end() -> None:
    _made.clear()
    _ends.close()
