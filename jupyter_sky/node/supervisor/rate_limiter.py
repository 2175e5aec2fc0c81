"""How much of what a rank prints is shown: all of it, up to the rate at which a user can read.

The log of the rank has every line. What is shown may have gaps when a rank prints faster than a
notebook can take; each gap says how much was left out, and what comes last is always shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 64 * 1024
"""Bytes that are shown at once, whatever the rate."""

RATE = 16 * 1024
"""Bytes a second that are shown after that."""

TAIL = 8 * 1024
"""Bytes that are kept of what is left out, so that its end can be shown."""


@dataclass(frozen=True)
class OutputPiece:
    """A piece of output to show, and what was left out before it.

    Attributes
    ----------
    data
        The bytes.
    offset
        Where they stand in the rank's log.
    skipped_lines, skipped_bytes
        How much was left out since the piece before.
    """

    data: bytes
    offset: int
    skipped_lines: int = 0
    skipped_bytes: int = 0


class RateLimiter:
    """Lets the output of one stream through, or its end where there is too much of it.

    A token bucket: it has room for `BURST` bytes, and `RATE` bytes a second flow in.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = float(BURST)
        self._filled = clock()
        self._held = b""
        self._end = 0
        self._held_lines = 0
        self._held_bytes = 0

    @property
    def is_holding(self) -> bool:
        """Whether something is held back."""
        return self._held_bytes > 0

    @property
    def delay(self) -> float:
        """Seconds until what is held back may be shown."""
        self._refill()
        return max(0.0, (TAIL - self._tokens) / RATE)

    def feed(self, data: bytes, offset: int) -> OutputPiece | None:
        """Return what to show now that ``data`` was printed, which the log has at ``offset``."""
        self._refill()
        if not self._held_bytes and self._tokens >= len(data):
            self._tokens -= len(data)
            return OutputPiece(data, offset)
        self._held_lines += data.count(b"\n")
        self._held_bytes += len(data)
        self._held = (self._held + data)[-TAIL:] if len(data) < TAIL else data[-TAIL:]
        self._end = offset + len(data)
        return self.release() if self._tokens >= BURST / 2 else None

    def release(self) -> OutputPiece | None:
        """Return the end of what is held back, from the beginning of a line where there is one."""
        if not self._held_bytes:
            return None
        data = self._held
        if len(data) < self._held_bytes:
            data = data[data.find(b"\n", 0, -1) + 1 :]
        piece = OutputPiece(
            data,
            self._end - len(data),
            self._held_lines - data.count(b"\n"),
            self._held_bytes - len(data),
        )
        self._tokens -= len(data)
        self._held, self._held_lines, self._held_bytes = b"", 0, 0
        return piece

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + (now - self._filled) * RATE)
        self._filled = now
