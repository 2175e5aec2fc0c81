"""The end of output that was printed faster than a notebook can show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher

from jupyter_sky.notebook.output import renderer
from jupyter_sky.notebook.output.flood import FloodEnd
from jupyter_sky.transport.protocol.events import Output


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
    publisher = CapturingDisplayPublisher()
    shell: Any = SimpleNamespace(display_pub=publisher, kernel=None)
    output = renderer.Renderer(shell, ranks)
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
