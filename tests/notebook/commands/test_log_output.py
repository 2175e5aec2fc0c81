"""How `%sky logs` prints what ranks have written, piece by piece as it arrives."""

from __future__ import annotations

import json
import sys
import tracemalloc

import pytest

from jupyter_sky.cluster.rank_log import LogEntry
from jupyter_sky.notebook.commands import logs

STATES = 2000


@pytest.mark.parametrize("bar", ["\r{}", "{}\r"])
def test_of_a_bar_that_goes_on_only_the_last_state_is_kept(
    capsys: pytest.CaptureFixture[str], bar: str
) -> None:
    printer = logs._LabelledPrinter([0, 1])
    tracemalloc.start()
    try:
        for at in range(1, STATES + 1):
            state = f"{at / STATES:.0%}".ljust(100, "#")
            printer.print(LogEntry(1, 1000.0, bar.format(state).encode(), "stderr"))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100 * STATES / 10
    printer.print(LogEntry(1, 1000.0, b"\r\ndone\r\nwithout an end", "stderr"))
    printer.finish()
    assert capsys.readouterr().out.splitlines() == [
        f"1 │ {'100%'.ljust(100, '#')}",
        "1 │ done",
        "1 │ without an end",
    ]


BEGUN, ENDED = "é".encode()[:1], "é".encode()[1:]

HALVES = [
    LogEntry(0, 1000.0, BEGUN),
    LogEntry(0, 1000.0, b"a warning " + BEGUN, "stderr"),
    LogEntry(0, 1000.0, ENDED + b"\n"),
    LogEntry(0, 1000.0, ENDED + b"\n" + BEGUN, "stderr"),
]
"""What a rank prints to two streams at once."""


def test_characters_are_whole_however_two_streams_alternate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = logs._PlainPrinter(0, None)
    for entry in HALVES:
        plain.print(entry)
    plain.finish()
    assert capsys.readouterr().out == "a warning é\né\n\N{REPLACEMENT CHARACTER}"
    as_json = logs._JsonPrinter()
    for entry in HALVES:
        as_json.print(entry)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["text"] for each in said] == ["", "a warning ", "é\n", "é\n"]


HARM = {
    "the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "the clipboard in two parts": "\x1b]52;c;ZXZ|pbA==\x1b|\\",
    "the title": "\x1b]0;evil\x1b\\",
    "a question to the terminal": "\x1b[|6n\x1b[c\x1b[>q\x1bZ\x05",
    "an 8-bit sequence": "\x9b6n\x9d52;c;ZXZp\x9c",
    "a mode": "\x1b[?1000h\x1b[?2004l\x1b[?1049h\x1b[!p",
    "a reset": "\x1b|c\x1b(0\x0e",
    "a device": '\x1bP$q"p\x1b\\\x1b_Gi=1\x1b\\\x1b^x\x1b\\\x1b[5i',
    "a sequence in a sequence": "\x1b\x1b[6n\x1b[\x1b[6n",
    "another alphabet in two parts": "\x1b(|B\x1b[ |q",
    "an image in parts": f"\x1b]1337;File=:|{'QUJD' * 2000}|{'QUJD' * 2000}\x1b|\\",
    "none that ends": "\x1b]52;c;",
}


@pytest.mark.parametrize("what", HARM)
@pytest.mark.parametrize("ranks", [[0], [0, 1]], ids=["one", "several"])
def test_a_terminal_is_not_commanded_by_what_ranks_print(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    ranks: list[int],
) -> None:
    def printed() -> str:
        printer = logs._LabelledPrinter(ranks) if len(ranks) > 1 else logs._PlainPrinter(0, None)
        for piece in (b"\x1b[1;31mred\x1b", b"[0m ", *HARM[what].encode().split(b"|"), b"\nend\n"):
            printer.print(LogEntry(0, 1000.0, piece))
        printer.finish()
        return capsys.readouterr().out.replace("0 \u2502 ", "")

    assert printed() == f"\x1b[1;31mred\x1b[0m {HARM[what].replace('|', '')}\nend\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert printed().replace("52;c;\n", "\n") == "\x1b[1;31mred\x1b[0m \nend\n"
