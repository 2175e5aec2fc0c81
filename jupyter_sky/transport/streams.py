"""The order of what a process writes to two streams, and how they read as one.

What is wanted: lines of stdout and stderr in the order in which they were written. What does not
work: two pipes alone, as both can have something when they are read; and one pipe for both, as
nobody can tell them apart there. The solution: wherever Python goes on with the other stream, it
leaves a numbered mark in both pipes, which the reader takes out again. Marks of another kind say
which of several calls at once has written what follows in their pipe.
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
    """Return the mark where a stretch of a stream begins, or where the one before it ended."""
    return _mark(b"B" if begins else b"E", number)


def call_mark(call: int) -> bytes:
    """Return the mark behind which a stream is written by a call; 0 stands for none of them."""
    return _mark(b"C", call)


def _mark(kind: bytes, number: int) -> bytes:
    return b"\x00\x10sky%c%08x\x10\x10" % (kind, number & 0xFFFFFFFF)


class Piece(NamedTuple):
    """A piece of what was read: its place, the call that has written it, and what it is."""

    place: int
    call: int
    data: bytes


class MarkReader:
    """Takes the marks out of what is read from one pipe."""

    def __init__(self) -> None:
        self._place = FIRST_PLACE
        self._call = 0
        self._rest = b""

    def split(self, data: bytes) -> list[Piece]:
        """Return what was read in pieces."""
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
        # A piece without data says which place has come.
        return [piece for piece in pieces if piece.data] or [pieces[-1]]

    def end(self) -> Piece:
        """Return what looked like the beginning of a mark, and was none."""
        rest, self._rest = self._rest, b""
        return Piece(self._place, self._call, rest)


def _without_part_of_mark(data: bytes) -> tuple[bytes, bytes]:
    """Cut off the beginning of a mark of which the end has not come yet."""
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
    """Says what has to stand between two pieces of different streams so that they read as lines.

    A terminal glues a line to the progress bar before it. Here the line takes the place of the bar,
    which is drawn again with its next state, and other unfinished lines are ended.
    """

    _source: object = ""
    _is_open: bool = False
    _is_bar: bool = False

    def between(self, source: object, data: bytes) -> bytes:
        """Return what has to come before ``data``; ``source`` is its stream, and who wrote it."""
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
