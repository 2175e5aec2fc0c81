"""What stands where in a rank's log: when it was written, to which stream, and in which run.

The log itself has the bytes as they came, so that it can be read and saved as it is. The index lies
beside it: a record of fixed size for each piece, which is what came to one stream in a tenth of a
second.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.transport.protocol.agent_requests import LoggedPiece, LoggedRun

RESOLUTION = 0.1
"""Seconds of one stream that are one piece."""

_RECORD = struct.Struct("<dQB")  # time, offset, stream
_STREAMS = ("stdout", "stderr", "log")
_MOST_RUNS = 10_000


class LogIndex:
    """The index of one log.

    Parameters
    ----------
    path
        Where it is kept.
    clock
        Returns the time, in seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._count = 0
        self._end = 0
        self._last: tuple[str, float] | None = None
        self._runs: deque[LoggedRun] = deque(maxlen=_MOST_RUNS)

    def begin_run(self, run: str, title: str, offset: int) -> None:
        """Record that what is written from ``offset`` on is of a run."""
        self._advance(offset)
        self._runs.append((offset, self._clock(), run, title))
        self._last = None

    def add(self, stream: str, offset: int | None) -> None:
        """Record that a stream was written to; ``None`` if the log does not have it."""
        now = self._clock()
        if offset is None:
            return
        self._advance(offset)
        if self._last and self._last[0] == stream and now < self._last[1] + RESOLUTION:
            return
        record = _RECORD.pack(now, offset, _STREAMS.index(stream))
        with contextlib.suppress(OSError):  # a full disk: the piece counts to the one before
            if os.pwrite(self._fd, record, self._count * _RECORD.size) == _RECORD.size:
                self._count += 1
                self._last = (stream, now)

    def pieces(self, start: int, end: int) -> list[LoggedPiece]:
        """Return the pieces of the log between two offsets, with that in which the first stands."""
        first = max(0, self._count_before(start + 1) - 1)
        last = self._count_before(end)
        data = os.pread(self._fd, (last - first) * _RECORD.size, first * _RECORD.size)
        return [
            (offset, written, _STREAMS[stream])
            for written, offset, stream in _RECORD.iter_unpack(data)
        ]

    def runs(self, start: int, end: int) -> list[LoggedRun]:
        """Return the runs that stand between two offsets, with that in which the first stands."""
        offsets = [run[0] for run in self._runs]
        first = max(0, bisect.bisect_right(offsets, start) - 1)
        return list(self._runs)[first : bisect.bisect_left(offsets, end)]

    def _advance(self, offset: int) -> None:
        """Begin anew where the log has become shorter: the user may have cut it."""
        if offset < self._end:
            self._count, self._last = 0, None
            self._runs.clear()
        self._end = offset

    def _count_before(self, offset: int) -> int:
        """Return how many pieces begin before ``offset``."""
        return bisect.bisect_left(range(self._count), offset, key=self._offset)

    def _offset(self, number: int) -> int:
        data = os.pread(self._fd, _RECORD.size, number * _RECORD.size)
        return int(_RECORD.unpack(data)[1])
