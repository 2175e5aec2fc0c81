"""Lets ranks wait for each other for as long as the user is debugging one of them.

The time limit of a collective is fixed when it begins: after it, gloo raises an error, and those of
NCCL are aborted. Collectives that begin from now on get a day. Earlier ones keep their limit, which
neither library can change any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from jupyter_sky.node.rank.group.torch_groups import backends, groups

_LONG = timedelta(days=1)


_Place = tuple[Any, str]
"""A group, and a type of devices, for which it has a backend."""


class Holding:
    """The time limits of this process's groups."""

    def __init__(self) -> None:
        self._before: dict[_Place, timedelta] = {}

    def hold(self) -> None:
        """Let collectives that begin from now on wait for a long time."""
        for place, backend in _places():
            usual = getattr(getattr(backend, "options", None), "_timeout", None)
            if place not in self._before and isinstance(usual, timedelta) and usual < _LONG:
                self._before[place] = usual
                _set(backend, _LONG)

    def release(self) -> None:
        """Restore the limits of the groups."""
        before, self._before = self._before, {}
        if not before:
            return
        for place, backend in _places():
            if place in before:
                _set(backend, before[place])


def _places() -> Iterator[tuple[_Place, Any]]:
    for _, group in groups():
        for device, backend in backends(group):
            yield (group, device), backend


def _set(backend: Any, limit: timedelta) -> None:
    with contextlib.suppress(Exception):  # private to torch: another version may lack it
        backend._set_default_timeout(limit)
