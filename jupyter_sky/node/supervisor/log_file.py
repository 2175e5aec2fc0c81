"""What ranks print: one log a rank, complete, whatever of it is shown."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Log:
    """The log of one rank: bytes as they came from its streams, appended."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._fd).st_size

    def append(self, data: bytes) -> int:
        """Write ``data`` and return the offset at which it stands.

        When the disk is full, it is not in the log; whoever is shown it sees it all the same.
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

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
