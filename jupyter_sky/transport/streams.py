"""The order in which a process writes to two streams, and how to read them as one.

What is wanted: lines of stdout and stderr in the order in which they were written.

What does not work: two separate pipes, since both may hold data when they are read; or one pipe for
both, since the streams cannot be told apart then.

The solution: whenever Python switches to the other stream, it puts a numbered mark in both pipes,
which the reader removes. Marks of another kind say which of several concurrent calls wrote the data
that follows in their pipe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_MARK = re.compile(rb"\x00\x10sky([BEC])([0-9a-f]{8})\x10\x10")
_LENGTH = 16
_HEAD = b"\x00\x10sky"

FIRST_PLACE = 1
"""Place of what is written before the first mark, which Python leaves before it writes anything.

What Python wrote after mark ``n`` has the place ``2 * n``. What others wrote to the pipe that
Python has left, such as programs that it started, comes behind that, at ``2 * n + 1``: an odd
place says no more than that, and is moved behind what else is known to be written by then.
"""


def mark(begins: bool, number: int) -> bytes:
    """Return the mark at which a stretch of one stream begins and that of the other ends."""
    return _mark(b"B" if begins else b"E", number)


def call_mark(call: int) -> bytes:
    """Return the mark after which a call writes to a stream; 0 stands for no call."""
    return _mark(b"C", call)


def _mark(kind: bytes, number: int) -> bytes:
    return b"\x00\x10sky%c%08x\x10\x10" % (kind, number & 0xFFFFFFFF)


class Piece(NamedTuple):
    """A piece of data: its place in the order, the call that has written it, and the bytes."""

    place: int
    call: int
    data: bytes


class MarkReader:
    """Removes the marks from data that is read from one pipe."""

    def __init__(self) -> None:
        self._place = FIRST_PLACE
        self._call = 0
        self._rest = b""

    def split(self, data: bytes) -> list[Piece]:
        """Split data at its marks."""
        if not self._rest and b"\x00" not in data:
            return [Piece(self._place, self._call, data)]
        data = self._rest + data
        data, self._rest = _without_part_of_mark(data)
        pieces, at = [], 0
        for found in _MARK.finditer(data):
            pieces.append(Piece(self._place, self._call, data[at : found.start()]))
            if found[1] == b"C":
                self._call = int(found[2], 16)
            else:
                self._place = 2 * int(found[2], 16) + (found[1] == b"E")
            at = found.end()
        pieces.append(Piece(self._place, self._call, data[at:]))
        # A piece without data tells which place was reached.
        return [piece for piece in pieces if piece.data] or [pieces[-1]]

    def end(self) -> Piece:
        """Return data held back because it looked like the beginning of a mark, but was none."""
        rest, self._rest = self._rest, b""
        return Piece(self._place, self._call, rest)


def _without_part_of_mark(data: bytes) -> tuple[bytes, bytes]:
    """Cut off the beginning of a mark whose end has not arrived yet."""
    at = data.rfind(b"\x00", max(0, len(data) - _LENGTH + 1))
    while at >= 0:
        tail = data[at:]
        if len(tail) < _LENGTH and _could_begin(tail):
            return data[:at], tail
        at = data.rfind(b"\x00", max(0, len(data) - _LENGTH + 1), at)
    return data, b""


def _could_begin(tail: bytes) -> bool:
    head = tail[: len(_HEAD)]
    if not _HEAD.startswith(head):
        return False
    rest = tail[len(_HEAD) :]
    return re.fullmatch(rb"([BEC]([0-9a-f]{0,8}|[0-9a-f]{8}\x10))?", rest) is not None


@dataclass
class LineJoiner:
    """Tells what to insert between pieces of different streams so that they read as lines.

    A terminal would append a line to the progress bar before it. Here the line replaces the bar,
    which is redrawn when it next changes; other unfinished lines are ended.
    """

    _source: object = ""
    _is_open: bool = False
    _is_bar: bool = False

    def between(self, source: object, data: bytes) -> bytes:
        """Return what to insert before ``data``; ``source`` is its stream and its writer."""
        gap = b""
        if self._is_open and source != self._source and data[:1] not in (b"\n", b"\r"):
            gap = b"\r\x1b[K" if self._is_bar else b"\n"
        self._source = source
        line = data.rstrip(b"\r").rpartition(b"\n")[2]
        if b"\n" in data:
            self._is_bar = False
        self._is_open = not data.endswith(b"\n")
        self._is_bar = self._is_open and (self._is_bar or b"\r" in line)
        return gap
