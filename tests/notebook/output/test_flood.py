"""The end of output that was printed faster than a notebook can show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher

from jupyter_sky.notebook.output import renderer
from jupyter_sky.notebook.output.flood import FloodEnd
from jupyter_sky.transport.protocol.events import Output


def in_a_kernel(ranks: Sequence[int]) -> tuple[renderer.Renderer, CapturingDisplayPublisher]:
    """Return what renders the output of ranks in a notebook, and what is displayed there."""
    publisher = CapturingDisplayPublisher()
    shell: Any = SimpleNamespace(display_pub=publisher, kernel=None)
    return renderer.Renderer(shell, ranks), publisher


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_the_end_is_shown_however_lines_end(end: str) -> None:
    publisher = CapturingDisplayPublisher()
    shell: Any = SimpleNamespace(display_pub=publisher)
    flood = FloodEnd(shell)
    event = Output(0, "run", "stdout", b"", skipped_lines=9, skipped_bytes=900)
    flood.add(event, "".join(f"step {number}{end}" for number in range(10_000)))
    flood.show()
    [shown] = publisher.outputs
    assert shown["data"]["text/plain"].splitlines()[-1] == "step 9999"


@pytest.mark.parametrize("ranks", [[0], [0, 1]])
def test_a_cell_stays_small_however_long_a_run_prints(
    ranks: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(renderer, "_MOST", 1000, raising=False)
    output, publisher = in_a_kernel(ranks)
    for number in range(5000):
        for rank in ranks:
            output.render(Output(rank, "run", "stdout", b"step %d\n" % number))
    output.finish()
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].endswith("step 0")
    assert len(printed) < 1100
    last = {each["transient"]["display_id"]: each for each in publisher.outputs}
    ends = [each["data"]["text/plain"].splitlines() for each in last.values()]
    assert [lines[-1].endswith("step 4999") for lines in ends] == [True for _ in ranks]
    # What is not shown is counted.
    left_out = sum(int(lines[0].split()[1].replace(",", "")) for lines in ends)
    shown = printed.count("\n") + sum(len(lines) - 1 for lines in ends)
    assert left_out + shown == 5000 * len(ranks)


def test_the_end_of_a_flood_is_not_sent_more_often_than_a_user_can_see() -> None:
    publisher = CapturingDisplayPublisher()
    shell: Any = SimpleNamespace(display_pub=publisher)
    now = 100.0
    flood = FloodEnd(shell, clock=lambda: now)
    for number in range(1000):
        flood.add(Output(0, "run", "stdout", b""), f"step {number}\n")
        flood.show()
        now += 0.001
    assert 5 <= len(publisher.outputs) <= 6
    flood.show(waits=False)
    flood.show(waits=False)
    assert len(publisher.outputs) <= 7
    assert publisher.outputs[-1]["data"]["text/plain"].endswith("step 999")


def shown_at_last(publisher: CapturingDisplayPublisher) -> list[str]:
    """Return what each display shows in the end."""
    last = {each["transient"]["display_id"]: each for each in publisher.outputs}
    return [each["data"]["text/plain"] for each in last.values()]


def test_bars_are_drawn_in_place_in_a_cell_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "_MOST", 100)
    output, publisher = in_a_kernel([0])
    for number in range(50):
        output.render(Output(0, "run", "stderr", b"step %d\n" % number))
    for number in range(1000):
        bars = b"\r%s %d\n\rbatch %d\x1b[A" % (b"#" * 50, number // 100, number % 100)
        output.render(Output(0, "run", "stderr", bars))
    output.finish()
    [shown] = shown_at_last(publisher)
    assert shown.splitlines()[-4:] == ["step 48", "step 49", f"{'#' * 50} 9", "batch 99"]
    assert "not shown" not in shown  # nothing is left out by what was overwritten


def test_a_cell_stays_small_also_where_lines_are_printed_between_states_of_a_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renderer, "_MOST", 1000)
    output, publisher = in_a_kernel([0])
    for number in range(3000):
        output.render(Output(0, "run", "stderr", b"\r%d it/s" % number))
        output.render(Output(0, "run", "stderr", b"INFO %d\n" % number))
    output.finish()
    shown = shown_at_last(publisher)
    assert sum(map(len, shown)) < 20_000
    assert shown[-1].splitlines()[-1] == "2999 it/sINFO 2999"


def test_a_bar_goes_on_where_it_is_once_its_cell_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "_MOST", 100)
    output, publisher = in_a_kernel([0])
    for number in range(100):
        output.render(Output(0, "run", "stderr", b"\r%d it/s" % number))
        output.render(Output(0, "run", "stdout", b"step %d\n" % number))
    output.finish()
    bar, steps = shown_at_last(publisher)
    assert bar == "99 it/s"
    assert steps.splitlines()[-1] == "step 99"


def test_a_page_is_sent_no_more_by_many_ranks_than_it_can_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Jupyter's server drops all messages of a kernel that sends more than 1000 a second."""
    now = 100.0
    monkeypatch.setattr(renderer, "_MOST", -1)
    monkeypatch.setattr(renderer, "FloodEnd", partial(FloodEnd, clock=lambda: now))
    output, publisher = in_a_kernel(range(200))
    for number in range(51):
        for rank in range(200):
            output.render(Output(rank, "run", "stdout", b"step %d\n" % number), flush=False)
        output.flush()
        now += 0.4
    assert len(publisher.outputs) < 200 + 20 * 25  # each at first, and some in 20 seconds
    output.flush(waits=False)  # as before a question to the user
    ends = [each.splitlines()[-1] for each in shown_at_last(publisher)]
    assert ends == [f"{rank:>3} │ step 50" for rank in range(200)]
