"""The last lines of what a rank prints, as a terminal shows them.

Of nested progress bars, the inner one is drawn so often that the outer one would not be in the last
kilobytes: a strip said how far the epoch is in place of how far the run is.
"""

from __future__ import annotations

import threading
from collections import deque

from jupyter_sky.formatting import goes_up, not_overwritten, terminal_rows

_KEPT = 4096  # bytes
_MOST_ROWS = 20  # more are not bars
_LARGEST_PIECE = 64 * 1024  # bytes that are looked at once


class LastLines:
    """The last lines of a text that comes in pieces; any thread may ask for them."""

    def __init__(self) -> None:
        self._text = ""
        self._new: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        """Add what was printed."""
        with self._lock:
            self._new.append(data[-_LARGEST_PIECE:])
            self._size += len(self._new[-1])
            while self._size > _LARGEST_PIECE and len(self._new) > 1:
                self._size -= len(self._new.popleft())

    @property
    def text(self) -> str:
        """The lines, and moves of the cursor to the one that it is in."""
        with self._lock:
            if self._new:
                # One character for each byte: the bytes of a character may come in two pieces.
                text = self._text + b"".join(self._new).decode("latin-1")
                self._text = (_drawn(text) if goes_up(text) else text)[-_KEPT:]
                self._new.clear()
                self._size = 0
            return self._text.encode("latin-1").decode(errors="replace")


def _drawn(text: str) -> str:
    """Return a text that shows the same as another, without what is overwritten in it."""
    rows, at = terminal_rows(text)
    rows, below = rows[-_MOST_ROWS:], len(rows) - 1 - at
    shown = (not_overwritten(row) + "\r" * row.endswith("\r") for row in rows)
    return "\n".join(shown) + "\x1b[A" * below
