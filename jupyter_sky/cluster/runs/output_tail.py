"""The end of what ranks print, up to a number of bytes: a ring buffer of output events."""

from __future__ import annotations

from collections import deque

from jupyter_sky.cluster.snapshot import KeptOutput
from jupyter_sky.transport.metrics.last_lines import LastLines
from jupyter_sky.transport.protocol.events import Display, Output
from jupyter_sky.transport.streams import LineJoiner


class OutputTail:
    """Keeps the last output, and drops earlier events as a whole.

    Parameters
    ----------
    limit
        Bytes to keep; a single event may have more.

    Attributes
    ----------
    last_lines
        Its last lines.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._size, self._is_cut = 0, False
        self._joiner = LineJoiner()
        self.last_lines = LastLines()

    @property
    def text(self) -> str:
        """All the output that is kept."""
        if not self._pieces:
            return ""
        return b"".join(self._pieces).decode(errors="replace")

    @property
    def kept(self) -> KeptOutput:
        """All the output that is kept, and whether there was more before it."""
        return KeptOutput(self.text, self._is_cut)

    def end(self, limit: int) -> str:
        """Return the last ``limit`` bytes of what is kept."""
        if not self._pieces:  # a short way, for the many runs that print nothing
            return ""
        pieces, size = list(self._pieces), 0
        for at in range(len(pieces) - 1, -1, -1):
            size += len(pieces[at])
            if size >= limit:
                return b"".join(pieces[at:])[-limit:].decode(errors="replace")
        return b"".join(pieces).decode(errors="replace")

    def add(self, event: Output | Display) -> None:
        """Add what was printed, or the text of what was displayed."""
        if isinstance(event, Display):
            piece = str(event.data.get("text/plain", "")).encode(errors="replace") + b"\n"
        else:
            piece = self._joiner.between((event.stream, event.call), event.data) + event.data
        self._pieces.append(piece)
        self.last_lines.add(piece)
        self._size += len(piece)
        while self._size > self._limit and len(self._pieces) > 1:
            self._size -= len(self._pieces.popleft())
            self._is_cut = True
