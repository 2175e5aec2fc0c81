"""Notices that a node will be taken away, and the user's hooks for them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass

Hook = Callable[..., object]

hooks: list[Hook] = []
"""What this rank calls when a node of its cluster is about to be taken away, in this order."""


notices: list[Interruption] = []
"""What this rank was told so far."""


@dataclass(frozen=True)
class Interruption:
    """A node is about to be taken away.

    Attributes
    ----------
    kind
        What will happen to it: ``"terminate"``, ``"stop"`` or ``"hibernate"``; ``"spent"``, if it
        ends because the cluster has cost its ``--max-cost``; or ``"rebalance"``, if it is likely
        that it is taken away, but not certain.
    at
        When, as `time.time` counts; ``None`` if that is not known.
    ranks
        The ranks on it.
    here
        Whether this rank is one of them.
    """

    kind: str
    at: float | None
    ranks: tuple[int, ...]
    here: bool

    @property
    def seconds(self) -> float | None:
        """Seconds that are left; ``None`` if that is not known."""
        return None if self.at is None else max(0.0, self.at - time.time())


def pending() -> Interruption | None:
    """Return the last notice, if its time has not come yet."""
    return notices[-1] if notices and notices[-1].seconds else None


def call(hook: Hook, notice: Interruption) -> None:
    """Call a hook, with the notice if it takes an argument."""
    try:
        takes_argument = bool(inspect.signature(hook).parameters)
    except (TypeError, ValueError):
        takes_argument = False
    if takes_argument:
        hook(notice)
    else:
        hook()
