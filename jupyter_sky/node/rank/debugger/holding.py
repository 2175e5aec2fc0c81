"""Lets ranks wait for each other for as long as the user is debugging one of them.

The time limit of a collective is fixed when it begins: after it, gloo raises an error, and NCCL
ends the process. Collectives that begin from now on get a day. Earlier ones keep their limit, which
neither library can change any more.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

_LONG = timedelta(days=1)


class Holding:
    """The time limits of this process's groups."""

    def __init__(self) -> None:
        self._before: dict[Any, timedelta] = {}

    def hold(self) -> None:
        """Let collectives that begin from now on wait for a long time."""
        for group, backend in _groups():
            options = getattr(backend, "options", None)
            usual = getattr(options, "_timeout", None)
            if group not in self._before and isinstance(usual, timedelta) and usual < _LONG:
                self._before[group] = usual
                _set(group, _LONG)

    def release(self) -> None:
        """Restore the limits of the groups."""
        before, self._before = self._before, {}
        there = {group for group, _ in _groups()} if before else set()
        for group in before.keys() & there:
            _set(group, before[group])


def _groups() -> Iterator[tuple[Any, Any]]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    for group in list(distributed.distributed_c10d._world.pg_map):
        with contextlib.suppress(Exception):  # a group without a backend for this device
            yield group, group._get_backend(group._device_types[0])


def _set(group: Any, limit: timedelta) -> None:
    # `_set_pg_timeout` is private to torch: another version may lack it.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules["torch.distributed"].distributed_c10d._set_pg_timeout(limit, group)
