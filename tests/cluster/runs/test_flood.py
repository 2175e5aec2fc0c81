"""Ranks that print more than a notebook can take."""

from __future__ import annotations

from jupyter_sky.transport.protocol.events import Output


def test_very_many_lines(cells) -> None:
    cells.run("for i in range(300_000): print('line', i)", ranks=[0])
    # What is not shown takes no room here.
    assert sum(len(event.data) for event in cells.events) < 2e6
    assert len(cells.events) < 1000
    text = cells.text()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 299998\nline 299999\n")
    shown = text.count("\n") + sum(event.skipped_lines for event in cells.events)
    assert shown == 300_000
    assert cells.cluster.log(0, tail=2).data == b"line 299998\nline 299999\n"


def test_one_line_of_fifty_megabytes_and_bytes_that_are_no_text(cells) -> None:
    size = cells.cluster.log(0, tail=1).size
    cells.run("print('x' * 50_000_000)\nos.write(1, bytes(range(256)))")
    assert sum(len(event.data) for event in cells.events) < 2e6
    after = cells.cluster.log(0, tail=1).size
    assert after - size == 50_000_001 + 256
    printed = [event for event in cells.events if isinstance(event, Output)]
    assert printed[-1].data.endswith(bytes(range(256)))


def test_what_comes_after_a_flood_is_shown(cells) -> None:
    cells.run("print('y' * 5_000_000)\nprint('the end')")
    assert cells.text().endswith("the end\n")
