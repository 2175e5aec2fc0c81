"""The end of what ranks print, as text: bounded, and each line as a terminal shows it last."""

from __future__ import annotations

import pytest

from jupyter_sky.notebook.output.plain_output import PlainOutput
from jupyter_sky.transport.protocol.events import Display, Output

ROOM = 64 * 1024


def kept(output: PlainOutput) -> str:
    """Return what is kept of an output, without the line above it that says that some is not."""
    notice, _, text = output.text.partition("\n")
    assert notice == "[… what was printed before this is not kept here …]"
    return text


def printed(text: bytes, rank: int = 0, stream: str = "stdout") -> Output:
    return Output(rank, "run", stream, text)


@pytest.mark.parametrize("size", [1, 5, 1000, 1_000_000])
def test_it_has_the_last_bytes_whatever_the_pieces_are(size: int) -> None:
    data = b"".join(b"line %d\n" % number for number in range(20_000 if size > 5 else 10_000))
    output = PlainOutput([0])
    for at in range(0, len(data), size):
        output.add(printed(data[at : at + size]))
    assert kept(output).encode() == data[-ROOM:]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_that_is_too_long_has_its_end(end: str) -> None:
    output = PlainOutput([0])
    for _ in range(5):
        output.add(printed(f"{'é' * 20_000}".encode()))
    output.add(printed(f"end{end}".encode()))
    size = len(kept(output).encode())
    assert ROOM - 2 < size <= ROOM
    assert output.text.endswith(f"éend{end}")


def test_what_is_displayed_has_its_end_too() -> None:
    output = PlainOutput([0])
    output.add(Display(0, "run", "display", {"text/plain": "x" * 1_000_000}))
    assert kept(output) == "x" * (ROOM - 1) + "\n"


def test_what_is_displayed_commands_no_terminal() -> None:
    output = PlainOutput([0])
    output.add(Display(0, "run", "display", {"text/plain": "\x1b[1mx\x1b]52;c;ZXZpbA==\x07"}))
    assert output.text == "\x1b[1mx\n"


@pytest.mark.parametrize("size", [1, 1000])
def test_bars_in_bars_take_a_line_each_and_leave_what_stays(size: int) -> None:
    output = PlainOutput([0])
    drawn = "\router 0\n\rinner 0\x1b[A\n\rinner 1\x1b[A\router 1"
    units = list(drawn.replace("\x1b[A", "^")) if size == 1 else [drawn]
    for unit in units:
        output.add(printed(unit.replace("^", "\x1b[A").encode(), stream="stderr"))
    assert output.text == "outer 1\ninner 1"
    output.add(printed(b"\n\r       \x1b[A\n", stream="stderr"))
    output.add(printed(b"after\n"))
    assert output.text == "outer 1\nafter\n"


def test_ranks_do_not_write_into_lines_of_each_other() -> None:
    output = PlainOutput([8, 10])
    for rank in (8, 10):
        output.add(printed(b"\r1/2\r2", rank, "stderr"))
        output.add(printed(b"in ", rank))
    for rank in (10, 8):
        output.add(printed(b"/2\n", rank, "stderr"))
        output.add(printed(b"pieces\n\xe2\x82", rank))
        output.add(printed(b"\xac", rank))
    assert sorted(output.text.splitlines()) == [
        " 8 │ 2/2",
        " 8 │ in pieces",
        " 8 │ €",
        "10 │ 2/2",
        "10 │ in pieces",
        "10 │ €",
    ]


def test_what_no_terminal_would_show_does_no_harm() -> None:
    output = PlainOutput([0])
    output.add(printed(b"\r50 %%\x1b[%sB\x1b[%sA" % (b"9" * 5000, b"9" * 5000)))
    output.add(Display(0, "run", "display", {"text/plain": "lone \ud800"}))
    assert r"lone \ud800" in output.text and "50 %" in output.text


def test_it_says_what_is_left_out() -> None:
    output = PlainOutput([0])
    output.add(printed(b"begins"))
    output.add(Output(0, "run", "stdout", b"ends\n", skipped_lines=3, skipped_bytes=2000))
    output.add(Display(0, "run", "display", {"text/plain": "shown"}, skipped=2))
    lines = output.text.splitlines()
    assert lines[0] == "begins" and lines[1].startswith("[… 3 lines, 2")
    assert lines[2] == "ends" and lines[3].startswith("[… 2 displays not shown")
    assert lines[4:] == ["shown"]


def displayed(text: str, place: str, rank: int = 0, kind: str = "display") -> Display:
    return Display(rank, "run", kind, {"text/plain": text}, transient={"display_id": place})


def test_an_update_takes_the_place_of_what_was_displayed() -> None:
    output = PlainOutput([0, 1])
    output.add(displayed("é\n0%", "a"))
    output.add(displayed("0 of 9", "b"))
    output.add(displayed("other", "a", rank=1))
    output.add(printed(b"between\n"))
    output.add(displayed("epoch 1\nhalf\n100%", "a", kind="update"))
    output.add(displayed("1", "b", kind="update"))
    output.add(displayed("ü", "a", kind="update"))
    output.add(displayed("9 of 9", "b", kind="update"))
    lines = ["0 │ ü", "0 │ 9 of 9", "1 │ other", "0 │ between"]
    assert output.text.splitlines() == lines
    for rank in (0, 1):
        output.add(Display(rank, "run", "clear", {}))
    output.add(displayed("new", "a", kind="update"))
    assert output.text == "0 │ new\n"


def test_a_rank_clears_its_own_output_alone() -> None:
    output = PlainOutput([0, 1])
    output.say("a node was lost")
    for rank in (0, 1):
        output.add(printed(b"printed\n", rank))
        output.add(displayed("shown", "a", rank))
        output.add(printed(b"\r50 %", rank, "stderr"))
    output.add(Display(0, "run", "clear", {"wait": True}))
    shown = output.text.splitlines()
    output.add(printed(b"more\n", 1))
    output.add(printed(b"after\n", 0))
    assert "0 │ shown" in shown and "0 │ 50 %" in shown, "until something takes its place"
    kept = ["1 │ printed", "1 │ shown", "1 │ 50 %", "1 │ more", "0 │ after", "a node was lost"]
    assert sorted(output.text.splitlines()) == sorted(kept)


def test_what_is_not_kept_any_more_is_displayed_anew_when_it_is_updated() -> None:
    output = PlainOutput([0])
    output.add(displayed("first", "a"))
    output.add(displayed("second", "b"))
    output.add(displayed("x" * (ROOM - 20), "c"))
    output.add(displayed("second, longer", "b", kind="update"))
    assert "\nsecond, longer\nxxx" in output.text
    output.add(displayed("y" * ROOM, "c", kind="update"))
    for text in ("2", "3"):
        output.add(displayed(text, "b", kind="update"))
    assert output.text.endswith("y\n3\n")
    assert len(kept(output)) == ROOM
