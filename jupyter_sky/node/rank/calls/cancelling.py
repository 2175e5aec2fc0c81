"""Cancelling calls: those that have begun are stopped, the others never begin."""

from __future__ import annotations

import threading
from collections.abc import Callable

from jupyter_sky.transport.protocol.rank_messages import CancelCommand

_cancelled: set[tuple[str, int]] = set()
_stops: dict[tuple[str, int], Callable[[], object]] = {}
_guard = threading.Lock()


def cancel(command: CancelCommand) -> None:
    """Stop a call, whether it has begun or is still on its way; called in the side thread."""
    call = command["run"], command["number"]
    with _guard:
        _cancelled.add(call)
        if stop := _stops.get(call):
            stop()


def begin(run: str, number: int, stop: Callable[[], object]) -> bool:
    """Set how to stop a call that begins; return whether the call is still wanted.

    ``stop`` is called in another thread, and never after `end`.
    """
    with _guard:
        _stops[run, number] = stop
        return (run, number) not in _cancelled


def end(run: str, number: int) -> None:
    """Note that a call has ended, or did not begin."""
    with _guard:
        _stops.pop((run, number), None)


def end_run(run: str) -> None:
    """Forget the calls of a run that is over."""
    with _guard:
        _cancelled.difference_update([call for call in _cancelled if call[0] == run])
