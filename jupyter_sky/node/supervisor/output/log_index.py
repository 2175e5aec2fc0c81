"""The index of a rank's log: the time, stream and run of each piece.

The log itself has the raw bytes, so that it can be read and saved as it is. The index is a separate
file, with a record of fixed size for each piece: the output to one stream within a tenth of a
second. Like the log it has a limit: the first and the last records are kept.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.node.clock import steady_time
from jupyter_sky.transport.protocol.agent_requests import LoggedPiece, LoggedRun, LogStream

RESOLUTION = 0.1
"""Seconds of one stream that are one piece."""

_RECORD = struct.Struct("<dQB")  # time, offset, stream
_STREAMS: tuple[LogStream, ...] = ("stdout", "stderr", "log")
_MOST_RUNS = 2_000

FIRST = 500_000
"""Records that are kept of the beginning: those of fourteen hours, if there is one at each time."""

LAST = 1_500_000
"""Records that are kept of the end."""


class LogIndex:
    """The index of one log.

    Parameters
    ----------
    path
        The file of the index.
    clock
        Returns the time, in seconds since the epoch.
    first, last
        Most records to keep of its beginning, and of its end.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = steady_time,
        first: int = FIRST,
        last: int = LAST,
    ) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._most_first, self._most_last = first, last
        self._count = 0
        self._end = 0
        self._last: tuple[str, float] | None = None
        self._runs: deque[LoggedRun] = deque(maxlen=_MOST_RUNS)

    def begin_run(self, run: str, title: str, offset: int) -> None:
        """Record that output from ``offset`` on belongs to a run."""
        self._advance(offset)
        self._runs.append((offset, self._clock(), run, title))
        self._last = None

    def add(self, stream: str, offset: int | None) -> None:
        """Record output to a stream; ``None`` if the log does not have it."""
        now = self._clock()
        if offset is None:
            return
        self._advance(offset)
        if self._last and self._last[0] == stream and now < self._last[1] + RESOLUTION:
            return
        record = _RECORD.pack(now, offset, _STREAMS.index(stream))
        with contextlib.suppress(OSError):  # a full disk: the piece counts to the one before
            place = self._place(self._count) * _RECORD.size
            if os.pwrite(self._fd, record, place) == _RECORD.size:
                self._count += 1
                self._last = (stream, now)

    def pieces(self, start: int, end: int) -> list[LoggedPiece]:
        """Return the pieces between two offsets, including the one that contains the first."""
        first = max(0, self._count_before(start + 1) - 1)
        last = self._count_before(end)
        return [
            (offset, written, _STREAMS[stream])
            for written, offset, stream in _RECORD.iter_unpack(self._records(first, last))
        ]

    def runs(self, start: int, end: int) -> list[LoggedRun]:
        """Return the runs between two offsets, including the one that contains the first."""
        offsets = [run[0] for run in self._runs]
        first = max(0, bisect.bisect_right(offsets, start) - 1)
        return list(self._runs)[first : bisect.bisect_left(offsets, end)]

    def _advance(self, offset: int) -> None:
        """Start over if the log has become shorter: the user may have truncated it."""
        if offset < self._end:
            self._count, self._last = 0, None
            self._runs.clear()
        self._end = offset

    def _count_before(self, offset: int) -> int:
        """Return how many of the kept pieces begin before ``offset``."""
        kept = range(min(self._count, self._most_first + self._most_last))
        return bisect.bisect_left(kept, offset, key=self._offset)

    def _offset(self, at: int) -> int:
        return int(_RECORD.unpack(self._records(at, at + 1))[1])

    def _records(self, start: int, end: int) -> bytes:
        """Return a range of the kept records."""
        dropped = max(0, self._count - self._most_first - self._most_last)
        data = b""
        while start < end:
            place = self._place(start if start < self._most_first else start + dropped)
            ring = self._most_last if place >= self._most_first else 0
            # As many as are consecutive in the file.
            count = min(end - start, self._most_first + ring - place)
            data += os.pread(self._fd, count * _RECORD.size, place * _RECORD.size)
            start += count
        return data

    def _place(self, number: int) -> int:
        """Return the position in the file of the record with a number."""
        beyond = number - self._most_first
        return number if beyond < 0 else self._most_first + beyond % self._most_last
