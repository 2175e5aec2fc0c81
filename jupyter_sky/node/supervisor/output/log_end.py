"""The end of a log that is longer than what is kept of it."""

from __future__ import annotations

import os
from pathlib import Path


class LogEnd:
    """A ring in a file: when it is full, what is written takes the place of the oldest bytes.

    Parameters
    ----------
    path
        The file; it is made when there is something to write.
    start
        Where in the log it begins.
    limit
        Bytes that it has at most.

    Attributes
    ----------
    oldest
        Where in the log that begins which is kept.
    """

    def __init__(self, path: Path, start: int, limit: int) -> None:
        self._path = path
        self._start = start
        self._limit = limit
        self._fd = -1
        self.oldest = start

    def write(self, data: bytes, offset: int) -> None:
        """Write what stands at ``offset`` of the log, behind all that was written before.

        Raises
        ------
        OSError
            When it cannot be written; what it was to take the place of may be lost then as well.
        """
        if not data:
            return
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        end = offset + len(data)
        self.oldest = max(self.oldest, end - self._limit)
        view = memoryview(data)[-self._limit :]
        while view:
            place = (end - len(view) - self._start) % self._limit
            view = view[os.pwrite(self._fd, view[: self._limit - place], place) :]

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` of the log on; all of them have to be there."""
        parts = []
        while size > 0:
            place = (offset - self._start) % self._limit
            part = os.pread(self._fd, min(size, self._limit - place), place)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def clear(self) -> None:
        """Begin anew."""
        self.oldest = self._start
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._path.unlink(missing_ok=True)
