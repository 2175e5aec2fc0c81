"""The log of a rank: all that it prints, whatever of it is shown in the notebook."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class LogFile:
    """The log of one rank: bytes as they came from its streams, appended.

    Attributes
    ----------
    size
        Bytes in it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._fd).st_size

    def append(self, data: bytes) -> int:
        """Write ``data`` and return the offset at which it stands.

        When the disk is full, the rest is missing in the log; it is shown all the same.
        """
        offset = self.size
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while len(view):
                view = view[os.write(self._fd, view) :]
        self.size = os.fstat(self._fd).st_size
        return offset

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset`` on."""
        return os.pread(self._fd, size, offset)

    def tail(self, lines: int, limit: int = 256 * 1024) -> bytes:
        """Return the last lines, at most ``limit`` bytes of them."""
        data = self.read(max(0, self.size - limit), limit)
        return b"".join(data.splitlines(keepends=True)[-lines:])


class RankLogs:
    """The logs of a node's ranks, also of those that were removed.

    Parameters
    ----------
    folder
        Where they are.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._logs: dict[int, LogFile] = {}

    def open(self, rank: int) -> LogFile:
        """Return the log of a rank; a new process of it goes on in the same."""
        if rank not in self._logs:
            self._logs[rank] = LogFile(self._folder / f"rank{rank}.log")
        return self._logs[rank]

    def read(self, rank: int, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset`` on of a rank's log."""
        return self._logs[rank].read(offset, size)
