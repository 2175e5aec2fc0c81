"""What is said before a node is taken away, and what the person's code wants to do then."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Hook = Callable[..., object]

hooks: list[Hook] = []
"""What this rank does when a node of its cluster is about to be taken away, in this order."""


@dataclass(frozen=True)
class Interruption:
    """A node is about to be taken away.

    Attributes
    ----------
    kind
        What becomes of it: ``"terminate"``, ``"stop"`` or ``"hibernate"``; or ``"rebalance"``, when
        that is not certain, but likely.
    at
        When, as ``time.time`` tells it; ``None`` if that is not known.
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


def call(hook: Hook, notice: Interruption) -> None:
    """Call a hook, which may want to know what is about to happen."""
    try:
        wanted: Any = inspect.signature(hook).parameters
    except (TypeError, ValueError):
        wanted = ()
    hook(notice) if wanted else hook()
