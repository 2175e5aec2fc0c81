"""Orders the displays of several ranks: figure by figure, each in rank order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from jupyter_sky.transport.protocol.events import Display, Output

Shown = Output | Display

PATIENCE = 2.0
"""Seconds that a display waits at most for those of lower ranks, which may never come."""


class RankOrder:
    """Holds back displays of a rank until the ranks before it have displayed as many.

    Output that the rank prints after a display waits with it, to preserve its own order.

    Parameters
    ----------
    ranks
        The ranks that are shown.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._counts = dict.fromkeys(sorted(ranks), 0)
        self._held: dict[int, deque[Shown]] = {rank: deque() for rank in self._counts}
        self._since: float | None = None

    def add(self, event: Shown) -> Iterator[Shown]:
        """Yield the events that can be shown, now that this one has arrived."""
        held = self._held.get(event.rank)
        if held is None or (not held and not _takes_turns(event)):
            yield event
            return
        held.append(event)
        if self._since is None:
            self._since = time.monotonic()
        yield from self._release()

    def overdue(self) -> Iterator[Shown]:
        """Yield everything that was held back for too long; to be called repeatedly."""
        if self._since is not None and time.monotonic() > self._since + PATIENCE:
            yield from self.finish()

    def finish(self) -> Iterator[Shown]:
        """Yield everything that is held back."""
        while waiting := [rank for rank, held in self._held.items() if held]:
            yield from self._release_rank(min(waiting, key=lambda rank: (self._counts[rank], rank)))
        self._since = None

    def _release(self) -> Iterator[Shown]:
        progress = True
        while progress:
            progress = False
            for rank, held in self._held.items():
                if held and self._is_due(rank):
                    progress = True
                    yield from self._release_rank(rank)
        if not any(self._held.values()):
            self._since = None

    def _release_rank(self, rank: int) -> Iterator[Shown]:
        """Yield the next display of a rank, and its output after that."""
        held = self._held[rank]
        first = held.popleft()
        if _takes_turns(first):
            self._counts[rank] += 1
        yield first
        while held and not _takes_turns(held[0]):
            yield held.popleft()

    def _is_due(self, rank: int) -> bool:
        count = self._counts[rank]
        return all(self._counts[lower] > count for lower in self._counts if lower < rank)


def _takes_turns(event: Shown) -> bool:
    return isinstance(event, Display) and event.kind in ("display", "result")
