"""Limits the shown output of a rank to the rate at which a user can read.

The log of the rank has every line. If a rank prints faster than a notebook can take, the shown
output has gaps; each gap says how much was left out, and the end is always shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 64 * 1024
"""Bytes that are shown at once, whatever the rate."""

RATE = 32 * 1024
"""Bytes a second that are shown after that."""

PROGRAM_BURST = 64 * 2**20
PROGRAM_RATE = 2**20
"""The same where a program takes it: a terminal or a file takes more than a page."""

GAP = 0.25
"""Seconds between two pieces of a flood at least: each piece has a line that says what is left out.

Of what is left out, as many bytes are kept as may be shown in that time: its end can be shown.
"""


@dataclass(frozen=True)
class OutputPiece:
    """A piece of output to show, and what was left out before it.

    Attributes
    ----------
    data
        The bytes.
    offset
        Their offset in the rank's log; ``None`` if it does not have them.
    skipped_lines, skipped_bytes
        How much was left out since the previous piece.
    """

    data: bytes
    offset: int | None
    skipped_lines: int = 0
    skipped_bytes: int = 0


class TokenBucket:
    """A token bucket: limits bursts and the long-term rate.

    Parameters
    ----------
    burst
        Its capacity, and its initial number of tokens.
    rate
        Tokens added per second.
    clock
        Returns the time.

    Attributes
    ----------
    burst, rate
        As above.
    """

    def __init__(self, burst: float, rate: float, clock: Callable[[], float]) -> None:
        self.burst = burst
        self.rate = rate
        self._clock = clock
        self._tokens = burst
        self._filled = clock()

    @property
    def tokens(self) -> float:
        """The present tokens; negative if more were taken than available."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        return self._tokens

    def take(self, count: float) -> None:
        """Take tokens."""
        self._tokens -= count

    def delay(self, count: float) -> float:
        """Return the seconds until that many tokens are available."""
        return max(0.0, (count - self.tokens) / self.rate)


class RateLimiter:
    """Passes the output of one stream on, or only its end if there is too much.

    Parameters
    ----------
    clock
        Returns the time.
    for_program
        Whether a program reads the output.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, for_program: bool = False
    ) -> None:
        amount = (PROGRAM_BURST, PROGRAM_RATE) if for_program else (BURST, RATE)
        self._bucket = TokenBucket(*amount, clock)
        self._tail = round(GAP * self._bucket.rate)
        self._held = b""
        self._end: int | None = 0  # end of the held output in the log, if all of it is there
        self._held_lines = 0
        self._held_bytes = 0

    def for_call(self) -> RateLimiter:
        """Return a limiter for one call, which shares the rate with the others."""
        limiter = RateLimiter()
        limiter._bucket, limiter._tail = self._bucket, self._tail
        return limiter

    @property
    def is_holding(self) -> bool:
        """Whether something is held back."""
        return self._held_bytes > 0

    @property
    def delay(self) -> float:
        """Seconds until what is held back may be shown."""
        return self._bucket.delay(self._tail)

    def feed(self, data: bytes, offset: int | None) -> OutputPiece | None:
        """Return what to show now that ``data`` was printed, which is at ``offset`` in the log."""
        if not self._held_bytes and self._bucket.tokens >= len(data):
            self._bucket.take(len(data))
            return OutputPiece(data, offset)
        follows = not self._held or len(data) >= self._tail or offset == self._end
        self._end = offset + len(data) if offset is not None and follows else None
        self._held_lines += data.count(b"\n")
        self._held_bytes += len(data)
        self._held = (self._held + data if len(data) < self._tail else data)[-self._tail :]
        return self.release() if self._bucket.tokens >= self._bucket.burst / 2 else None

    def release(self) -> OutputPiece | None:
        """Return the end of the held output, from the beginning of a line if there is one."""
        if not self._held_bytes:
            return None
        data = self._held
        if len(data) < self._held_bytes:
            data = data[data.find(b"\n", 0, -1) + 1 :]
        piece = OutputPiece(
            data,
            None if self._end is None else self._end - len(data),
            self._held_lines - data.count(b"\n"),
            self._held_bytes - len(data),
        )
        self._bucket.take(len(data))
        self._held, self._held_lines, self._held_bytes = b"", 0, 0
        return piece
