"""How `%sky logs` prints what ranks have written, piece by piece as it arrives."""

from __future__ import annotations

import json
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
