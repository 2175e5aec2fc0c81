"""Ring files, which keep the last numbered records that were written, and where each of them is."""

from __future__ import annotations

import bisect
import os
import struct
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

_PLACE = struct.Struct("<QQI")

MOST = 2_000_000
"""Records that are kept at most, whose places take 40 MB."""


class _Place(NamedTuple):
    """Where a record is."""

    number: int
    position: int
    size: int


class _Found(NamedTuple):
    """A record by its order: the first one that is kept with a number above ``after``."""

    at: int
    after: int
    place: _Place


_NOWHERE = _Place(0, 0, 0)


class Spool:
    """A ring of numbered records in a file: when it is full, new records replace the oldest.

    A record has a position, which only grows; its offset in the file is the position modulo the
    limit. The places of the records are in a second ring, in the order of their numbers, so that
    the next kept one is found without asking for each number. A full disk, or a write that ends
    early, costs the record that was being written and those that it was to replace. The others
    stay readable.

    Parameters
    ----------
    path
        The file; the places are in one beside it.
    limit
        The most bytes that it may have.
    most
        The most records that it may have.

    Attributes
    ----------
    dropped
        How many records were replaced by newer ones.
    dropped_to
        The number of the last of them.
    """

    def __init__(self, path: Path, limit: int, most: int = MOST) -> None:
        self.dropped = self.dropped_to = 0
        self._fd = _open(path)
        self._places = _open(path.with_name(f"{path.name}.places"))
        self._limit = limit
        self._most = most
        self._end = 0
        self._oldest = 0  # records that begin before this position may be overwritten
        self._count = 0  # of all records so far
        self._last = 0  # the number of the newest
        self._found = _Found(-1, 0, _NOWHERE)

    def append(self, number: int, record: bytes) -> bool:
        """Write a record, whose number is above all before; return whether there was room."""
        size = len(record)
        if size > self._limit:
            return False
        start = self._end
        if start % self._limit + size > self._limit:
            start += self._limit - start % self._limit
        self._oldest = max(self._oldest, start + size - self._limit)
        self._drop_replaced()
        try:
            _write(self._fd, record, start % self._limit)
            place = _PLACE.pack(number, start, size)
            _write(self._places, place, self._count % self._most * _PLACE.size)
        except OSError:
            return False
        self._end, self._last = start + size, number
        self._count += 1
        return True

    def read(self, number: int) -> bytes | None:
        """Return a record; ``None`` if it is not kept or cannot be read."""
        if (found := self._find(number)) is None or found.place.number != number:
            return None
        _, position, size = found.place
        if position < self._oldest or position + size > self._end:
            return None
        try:
            record = os.pread(self._fd, size, position % self._limit)
        except OSError:
            return None
        return record if len(record) == size else None

    def following(self, number: int) -> int | None:
        """Return the number of the first kept record from ``number`` on, if there is one."""
        found = self._find(number)
        return None if found is None else max(number, found.place.number)

    def _drop_replaced(self) -> None:
        """Count the records whose bytes, or whose place, the next one replaces."""
        while self.dropped < self._count:
            oldest = self._place(self.dropped)
            if oldest.position >= self._oldest and self._count - self.dropped < self._most:
                break
            self.dropped, self.dropped_to = self.dropped + 1, oldest.number

    def _find(self, number: int) -> _Found | None:
        """Return the first kept record from ``number`` on, if there is one."""
        if number > self._last or self.dropped == self._count:
            return None
        found = self._found
        if found.place.number < number and found.at + 1 < self._count:
            # Who reads one after the other wants the next one.
            found = _Found(found.at + 1, found.place.number, self._place(found.at + 1))
        if not (found.at >= self.dropped and found.after < number <= found.place.number):
            kept = range(self.dropped, self._count)
            index = bisect.bisect_left(kept, number, key=lambda each: self._place(each).number)
            at = min(kept[0] + index, kept[-1])
            found = _Found(at, number - 1, self._place(at))
        self._found = found
        return found

    def _place(self, at: int) -> _Place:
        """Return the place of one of all records, by the order in which they were written."""
        try:
            place = os.pread(self._places, _PLACE.size, at % self._most * _PLACE.size)
        except OSError:
            return _NOWHERE
        return _Place(*_PLACE.unpack(place)) if len(place) == _PLACE.size else _NOWHERE


class MemorySpool:
    """The same in memory, for records that cannot be written.

    Parameters
    ----------
    limit
        The most bytes that they may have.

    Attributes
    ----------
    dropped, dropped_to
        As above.
    """

    def __init__(self, limit: int) -> None:
        self.dropped = self.dropped_to = 0
        self._limit = limit
        self._size = 0
        self._records: list[tuple[int, bytes]] = []

    def append(self, number: int, record: bytes) -> bool:
        """Keep a record, whose number is above all before."""
        self._records.append((number, record))
        self._size += len(record)
        if self._size > self._limit:
            self._drop_oldest()
        return True

    def read(self, number: int) -> bytes | None:
        """Return a record; ``None`` if it is not kept."""
        at = self._at(number)
        is_there = at < len(self._records) and self._records[at][0] == number
        return self._records[at][1] if is_there else None

    def following(self, number: int) -> int | None:
        """Return the number of the first kept record from ``number`` on, if there is one."""
        at = self._at(number)
        return self._records[at][0] if at < len(self._records) else None

    def _at(self, number: int) -> int:
        return bisect.bisect_left(self._records, number, key=itemgetter(0))

    def _drop_oldest(self) -> None:
        """Make room for a while: it takes longer the more records there are."""
        count = 0
        while self._size > self._limit * 3 // 4:
            self._size -= len(self._records[count][1])
            count += 1
        self.dropped, self.dropped_to = self.dropped + count, self._records[count - 1][0]
        del self._records[:count]


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _write(fd: int, data: bytes, place: int) -> None:
    # A write may be partial, for example when the disk becomes full.
    while (written := os.pwrite(fd, data, place)) < len(data):
        data, place = data[written:], place + written
