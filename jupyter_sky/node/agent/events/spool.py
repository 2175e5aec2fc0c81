"""Ring files, which keep the last records that were written, and an index of their places."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_PLACE = struct.Struct("<QQI")  # event number, position, size

MOST = 2_000_000
"""Events whose places are kept, in 40 MB: those of weeks."""


class Spool:
    """A ring of records in a file: when it is full, new records replace the oldest.

    A record has a position, which only grows; its offset in the file is the position modulo the
    limit. A full disk, or a write that ends early, costs the record that was being written and
    those that it was to replace. The others stay readable.

    Parameters
    ----------
    path
        The file.
    limit
        The most bytes that it may have.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._limit = limit
        self._end = 0
        self._oldest = 0  # records that begin before this position may be overwritten

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
        """Return a record; ``None`` if it was overwritten or cannot be read."""
        if position < self._oldest or position + size > self._end:
            return None
        try:
            record = os.pread(self._fd, size, position % self._limit)
        except OSError:
            return None
        return record if len(record) == size else None

    def _write(self, record: bytes, place: int) -> None:
        # A write may be partial, for example when the disk becomes full.
        while (written := os.pwrite(self._fd, record, place)) < len(record):
            record, place = record[written:], place + written


class Places:
    """The places of the last events, by number.

    Events for which the disk had no room have no place.

    Parameters
    ----------
    path
        The file.
    most
        The number of events whose places are kept.
    """

    def __init__(self, path: Path, most: int = MOST) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._most = most

    def add(self, number: int, position: int, size: int) -> bool:
        """Record where an event is; return whether there was room for that."""
        record = _PLACE.pack(number, position, size)
        try:
            return os.pwrite(self._fd, record, self._offset(number)) == len(record)
        except OSError:
            return False

    def find(self, number: int) -> tuple[int, int] | None:
        """Return position and size of an event; ``None`` if they are not kept."""
        try:
            record = os.pread(self._fd, _PLACE.size, self._offset(number))
        except OSError:
            return None
        if len(record) < _PLACE.size:
            return None
        written, position, size = _PLACE.unpack(record)
        return (position, size) if written == number else None

    def _offset(self, number: int) -> int:
        return number % self._most * _PLACE.size
