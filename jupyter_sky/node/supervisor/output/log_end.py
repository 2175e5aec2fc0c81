"""The kept end of a long log."""

from __future__ import annotations

import os
from pathlib import Path


class LogEnd:
    """A ring in a file: when it is full, new bytes replace the oldest ones.

    Parameters
    ----------
    path
        The file; it is created when first needed.
    start
        Its first offset in the log.
    limit
        The most bytes that it may have.

    Attributes
    ----------
    oldest
        The offset in the log of the oldest kept byte.
    """

    def __init__(self, path: Path, start: int, limit: int) -> None:
        self._path = path
        self._start = start
        self._limit = limit
        self._fd = -1
        self.oldest = start

    def write(self, data: bytes, offset: int) -> None:
        """Write the data at ``offset`` of the log, after everything written before.

        Raises
        ------
        OSError
            If it cannot be written; the bytes that it was to replace may then be lost as well.
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
        """Return ``size`` bytes at ``offset`` of the log; all of them must be kept."""
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
        """Start over."""
        self.oldest = self._start
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._path.unlink(missing_ok=True)
