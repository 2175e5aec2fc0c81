"""A file that holds the last records written to it, each of them whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


class Spool:
    """A ring of records in a file: when it is full, new ones take the place of the oldest.

    A record has a position, which only grows; its place in the file is that modulo the limit. A
    disk that is full, or a write that ends in the middle, costs the record that was being written
    and those whose place it was to take. The others stay readable.

    Parameters
    ----------
    path
        The file.
    limit
        Bytes that it has at most.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._limit = limit
        self._end = 0
        self._oldest = 0  # what begins before this position may be overwritten

    def append(self, record: bytes) -> int | None:
        """Write a record, and return its position; ``None`` if there is no room for it."""
        size = len(record)
        if size > self._limit:
            return None
        start = self._end
        if start % self._limit + size > self._limit:
            start += self._limit - start % self._limit
        self._oldest = max(self._oldest, start + size - self._limit)
        try:
            self._write(record, start % self._limit)
        except OSError:
            return None
        self._end = start + size
        return start

    def read(self, position: int, size: int) -> bytes | None:
        """Return a record; ``None`` if it was overwritten meanwhile, or cannot be read."""
        if position < self._oldest:
            return None
        try:
            record = os.pread(self._fd, size, position % self._limit)
        except OSError:
            return None
        return record if len(record) == size else None

    def _write(self, record: bytes, place: int) -> None:
        view = memoryview(record)
        while view:
            # A write may take less than it is given, also at the moment when the disk is full.
            written = os.pwrite(self._fd, view, place)
            view, place = view[written:], place + written
