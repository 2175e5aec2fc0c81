"""What ranks have shown in a cell, so that each can clear its own output there.

A page can only clear a whole cell. What the other ranks have shown is then shown again, rank by
rank, and not more often than a user can see.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jupyter_sky.transport.protocol.events import Display, Output

_KEPT = 128 * 1024  # characters of a rank's output, at most; earlier ones are not shown again
_COST = 8 * 1024  # as many characters as a display counts, whatever it shows

INTERVAL = 0.05
"""Seconds between two times at which a cell is drawn, however often ranks clear it."""

PATIENCE = 0.3
"""Seconds that a cell waits at most for the ranks that usually clear with the one that has."""


@dataclass
class _Shown:
    """An event that was shown, and its text if it was printed."""

    event: Output | Display
    text: str

    @property
    def cost(self) -> int:
        return _COST if isinstance(self.event, Display) else len(self.text)


@dataclass
class _OfRank:
    """The output of a rank since it last cleared it."""

    shown: deque[_Shown] = field(default_factory=deque)
    cost: int = 0
    lines: int = 0  # that are not kept any more
    bytes: int = 0

    def add(self, one: _Shown) -> None:
        self.shown.append(one)
        self.cost += one.cost
        while self.cost > _KEPT and len(self.shown) > 1:
            first = self.shown.popleft()
            self.cost -= first.cost
            text = first.text
            if isinstance(first.event, Output):
                self.lines += first.event.skipped_lines
                self.bytes += first.event.skipped_bytes
            else:
                text = f"{first.event.data.get('text/plain', '')}\n"
            self.lines += text.count("\n")
            self.bytes += len(text.encode(errors="replace"))


class RankOutputs:
    """Keeps what ranks show, until they clear it.

    Parameters
    ----------
    clock
        The time, for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: defaultdict[int, _OfRank] = defaultdict(_OfRank)
        self._clearing: set[int] = set()  # ranks that have cleared something before
        self._cleared: set[int] = set()  # and since the cell was last drawn
        self._since = 0.0
        self._drawn = -INTERVAL

    @property
    def is_outdated(self) -> bool:
        """Whether the cell shows what a rank has cleared, and has to be drawn again."""
        return bool(self._cleared)

    @property
    def is_due(self) -> bool:
        """Whether to do so now: once for all ranks, where each clears in every step of a loop."""
        if not self._cleared or self._clock() < self._drawn + INTERVAL:
            return False
        return self._cleared >= self._clearing or self._clock() > self._since + PATIENCE

    def add(self, event: Output | Display, text: str) -> None:
        """Keep what a rank shows."""
        of_rank = self._of[event.rank]
        if isinstance(event, Display) and event.kind == "update":
            for one in of_rank.shown:
                if isinstance(one.event, Display) and _place(one.event) == _place(event):
                    one.event = replace(one.event, data=event.data, metadata=event.metadata)
                    return
        of_rank.add(_Shown(event, text))

    def clear(self, rank: int) -> None:
        """Take away what a rank has shown."""
        if self._of[rank].shown:
            self._of[rank] = _OfRank()
            self._since = self._since if self._cleared else self._clock()
            self._cleared.add(rank)
            self._clearing.add(rank)

    def draw(self) -> list[tuple[Output | Display, str]]:
        """Return what is to be shown in the cleared cell, rank by rank."""
        self._cleared.clear()
        self._drawn = self._clock()
        again: list[tuple[Output | Display, str]] = []
        for rank, of_rank in sorted(self._of.items()):
            if of_rank.bytes:
                run = of_rank.shown[0].event.run
                again.append((Output(rank, run, "stdout", b"", of_rank.lines, of_rank.bytes), ""))
            again += [(one.event, one.text) for one in of_rank.shown]
        return again


def _place(event: Display) -> object:
    return event.transient.get("display_id")
