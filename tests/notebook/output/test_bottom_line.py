"""What a terminal shows of bars of several ranks while they move."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher

from jupyter_sky.notebook.output import bottom_line
from jupyter_sky.notebook.output.renderer import Renderer
from jupyter_sky.transport.protocol.events import Display, Output


class Screen(io.StringIO):
    """A terminal, as far as a line is overwritten."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """The lines that stand there now."""
        lines, column = [""], 0
        for part in re.split(r"(\r|\n|\x1b\[K)", self.getvalue()):
            if part == "\n":
                lines.append("")
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif part != "\r":
                lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
                column += len(part)
                continue
            column = 0 if part != "\x1b[K" else column
        return lines


def test_a_bar_moves_below_the_lines_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(bottom_line, "_INTERVAL", 0)
    renderer = Renderer(object(), [0, 1])  # type: ignore[arg-type]

    def prints(rank: int, text: str, stream: str = "stderr") -> list[str]:
        renderer.render(Output(rank, "run", stream, text.encode()))
        return screen.lines

    assert prints(1, "\r 10%|#    |") == ["1 │  10%|#    |"]
    assert prints(0, "\r 20%|##   |") == ["0 │  20%|##   |"]
    assert prints(1, "\r 90%|#### |") == ["0 │  20%|##   |"]  # that of the first rank
    assert prints(1, "loss 3\n", "stdout") == ["1 │ loss 3", "0 │  20%|##   |"]
    renderer.flush(waits=False)  # something else is printed next, as a prompt
    assert screen.lines == ["1 │ loss 3", ""]
    prints(0, "\r100%|#####|\n")
    prints(1, "\r100%|#####|\n")
    renderer.finish()
    ends = [f"{rank} │ 100%|#####|" for rank in (1, 0)]
    assert screen.lines == ["1 │ loss 3", *ends, ""]


@pytest.mark.parametrize("ranks", [[0], [0, 1]], ids=["one", "several"])
def test_a_terminal_is_not_commanded_by_what_ranks_show(
    monkeypatch: pytest.MonkeyPatch, ranks: list[int]
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    publisher = CapturingDisplayPublisher()
    shell: Any = SimpleNamespace(display_pub=publisher)
    renderer = Renderer(shell, ranks)
    evil = "\x1b[31mred\x1b[0m\x1b]52;c;ZXZpbA==\x07\x1b[6n"
    renderer.render(Output(0, "run", "stdout", f"{evil}\n".encode()))
    renderer.render(Display(0, "run", "display", {"text/plain": evil}))
    renderer.finish()
    displayed = [each["data"]["text/plain"] for each in publisher.outputs]
    shown = "".join([screen.getvalue(), *displayed])
    assert shown.count("\x1b[31mred\x1b[0m") == 2
    assert "]52;c" not in shown
    assert "\x1b[6n" not in shown


def test_a_file_has_the_last_state_of_each_bar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    renderer = Renderer(object(), [0, 1])  # type: ignore[arg-type]
    for text in (b"\r 10%|#    |", b"\r100%|#####|\n"):
        renderer.render(Output(1, "run", "stderr", text))
    renderer.finish()
    assert written.getvalue() == "1 │ 100%|#####|\n"


def test_a_bar_that_is_longer_than_the_terminal_is_wide_is_cut_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "20")
    renderer = Renderer(object(), [0])  # type: ignore[arg-type]

    def prints(text: str) -> list[str]:
        renderer.render(Output(0, "run", "stderr", text.encode()))
        return screen.lines

    assert prints("as long as it is, since it stays\n")[:-1] == ["as long as it is, since it stays"]
    assert prints("\rtraining:  10%|")[1:] == ["training:  10%|"]
    assert prints("#         | 1/10")[1:] == ["training:  10%|#   "]
    # A terminal would begin a row for each of these.
    assert prints("\rtraining:  90%|######### | 9/10")[1:] == ["training:  90%|####"]
    assert prints("\rtraining: 100%|##########| 10/10")[1:] == ["training: 100%|####"]
    assert prints("\n")[1:] == ["training: 100%|##########| 10/10", ""]
    prints("\rnext:       50%|#####     | 5/10")
    renderer.finish()
    assert screen.lines[2:] == ["next:       50%|#####     | 5/10"]
