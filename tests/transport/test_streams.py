"""What two pipes carry, in the order in which it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_sky.transport.streams import (
    FIRST_PLACE,
    LineJoiner,
    MarkReader,
    Piece,
    call_mark,
    mark,
)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_marks_are_taken_out_however_they_are_cut(sizes: list[int]) -> None:
    sent = b"one" + mark(False, 1) + mark(True, 2) + b"two\x00\x10sk" + call_mark(7) + b"and"
    sent += mark(True, 3) + b"three"
    reader, found, at = MarkReader(), [], 0
    for size in [*sizes, len(sent)]:
        found += reader.split(sent[at : at + size])
        at += size
    found.append(reader.end())
    assert _joined(found) == {
        (FIRST_PLACE, 0): b"one",
        (4, 0): b"two\x00\x10sk",
        (4, 7): b"and",
        (6, 7): b"three",
    }


def _joined(pieces: list[Piece]) -> dict[tuple[int, int], bytes]:
    texts: dict[tuple[int, int], bytes] = {}
    for place, call, text in pieces:
        if text:
            texts[place, call] = texts.get((place, call), b"") + text
    return texts


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([("out", "a\n"), ("err", "b\n")], "a\nb\n"),
        ([("out", "loading"), ("err", "careful\n")], "loading\ncareful\n"),
        (
            [("err", "\r 10%|"), ("out", "loss\n"), ("err", "\r 20%|")],
            "\r 10%|\r\x1b[Kloss\n\r 20%|",
        ),
        ([("err", "\r100%|"), ("err", "\n"), ("out", "done\n")], "\r100%|\ndone\n"),
        ([("out", "x"), ("out", "y"), ("err", "\r 10%|")], "xy\r 10%|"),
    ],
)
def test_what_is_written_to_two_streams_reads_as_lines(
    pieces: list[tuple[str, str]], text: str
) -> None:
    joiner, joined = LineJoiner(), b""
    for stream, piece in pieces:
        joined += joiner.between(stream, piece.encode()) + piece.encode()
    assert joined.decode() == text
