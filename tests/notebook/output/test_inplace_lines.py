"""Progress bars: drawn in one place while they move, and a line in the notebook's file."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jupyter_sky.notebook.output.inplace_lines import FinalLines, InPlaceLines, overwriting_start
from tests.installed import skip_without
from tests.notebook.kernels import LiveNotebook

ERASE = "\x1b[2K"
UP = f"{ERASE}\x1b[1A{ERASE}"
# Below an outer bar, an inner one moves, takes its place in the end, and has it below again.
LEFT = "\router\n\rinner\x1b[A\n\rinner\x1b[A\rinner {}\n\router"


class Publisher:
    """Keeps what is displayed."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.updates: list[bool] = []

    def publish(self, data: dict[str, str], transient: Any, update: bool) -> None:
        self.shown.append(data["text/plain"])
        self.updates.append(update)


class Shell:
    def __init__(self) -> None:
        self.display_pub = Publisher()


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "drawn", "behind"),
    [
        ("\r1/3\r2/3\r3/3\nafter\n", "3/3", "after\n"),
        ("\router 0\n\rinner 0\x1b[A\n\rinner 1\x1b[A\router 1\n\r       \x1b[A", "outer 1", ""),
        (f"\x1b[?25l\r{ERASE}a 0\nb 0\r{UP}a 1\nb 1\n\x1b[?25hend\n", "a 1\nb 1", "end\n"),
        ("\r\x1b[31m50 %\x1b[0m\r\x1b[Kdone\r\nnext\r\n", "done", "next\r\n"),
    ],
    ids=["one", "tqdm in tqdm", "rich", "windows"],
)
def test_what_is_drawn_over_is_one_block(text: str, drawn: str, behind: str, size: int) -> None:
    shell: Any = Shell()
    bars, rest = InPlaceLines(shell), ""
    # Escapes come whole: ranks write them at once.
    pieces = [text] if size == 1000 else _whole(text, size)
    for piece in pieces:
        rest += piece if bars.over else bars.draw(piece)
    bars.show()
    assert (shell.display_pub.shown[-1], rest) == (drawn, behind)
    assert shell.display_pub.updates == [False] + [True] * (len(shell.display_pub.shown) - 1)


def _whole(text: str, size: int) -> list[str]:
    units = re.findall(r"\x1b\[[?\d]*[a-zA-Z]|\r\n|.", text, re.DOTALL)
    return ["".join(units[at : at + size]) for at in range(0, len(units), size)]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "final", "rest"),
    [
        ("one\n\ntwo\r\nth", ["one", "", "two"], ["th"]),
        ("\r1/2\r2/2\n\r1/2\r2/2", ["2/2"], ["2/2"]),
        (
            "\router 0\n\rinner 0\x1b[A\n\rinner 1\x1b[A\router 1\n\rinner 0",
            [],
            ["outer 1", "inner 0"],
        ),
        (f"{LEFT.format(0)}{LEFT.format(1)}", ["inner 0"], ["inner 1", "outer"]),
        (LEFT.format(0).removesuffix("\router"), [], ["inner 0"]),
        (f"\x1b[?25l\r{ERASE}a 0\nb 0\r{UP}a 1\nb 1", [], ["a 1", "b 1"]),
    ],
    ids=["lines", "one after the other", "tqdm in tqdm", "tqdm in tqdm, left", "cut", "rich"],
)
def test_what_nothing_overwrites_any_more(
    text: str, final: list[str], rest: list[str], size: int
) -> None:
    lines = FinalLines()
    assert [line for piece in _whole(text, size) for line in lines.draw(piece)] == final
    assert lines.end() == rest


def test_where_a_block_begins() -> None:
    assert overwriting_start("line\nother\n") is None
    assert overwriting_start("windows\r\n") is None
    assert overwriting_start("line\n50 %\r60 %") == len("line\n")


def test_bars_are_lines_in_the_file(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "%%sky\n"
        "from tqdm import tqdm, trange\n"
        "print('before')\n"
        "for epoch in trange(2, desc='epochs'):\n"
        "    for step in trange(50, desc='steps', leave=False):\n"
        "        pass\n"
        "print('after')"
    )
    assert (cell.stdout, cell.stderr) == ("before\nafter\n", "")
    [bar] = cell.shown
    assert bar.startswith("epochs: 100%") and "\n" not in bar
    # The last of these is overwritten by nothing, although it goes back to the start of the line.
    cell = pair.succeed("%%sky\nprint('0\\r1\\r2', end='\\r')")
    assert (cell.stdout, cell.shown) == ("", ["2"])


def test_bars_of_several_ranks_are_shown_when_they_are_full(pair: LiveNotebook) -> None:
    cell = pair.succeed("%%sky --stdout all\nfrom tqdm import trange\nfor _ in trange(50): pass")
    assert sorted(line[:8] for line in cell.stderr.splitlines()) == ["0 │ 100%", "1 │ 100%"]
    nested = "for _ in trange(20, desc='epochs'):\n    for _ in trange(90, leave=False): pass"
    cell = pair.succeed(f"%%sky --stdout all\n{nested}")
    assert sorted(line[:16] for line in cell.stderr.splitlines()) == [
        "0 │ epochs: 100%",
        "1 │ epochs: 100%",
    ]
    code = "for step in range(3): print(f'\\r{rank}: {step}', end='', flush=True); time.sleep(0.01)"
    cell = pair.succeed(f"%%sky --stdout all\n{code}")
    assert sorted(cell.stdout.split("\n")) == ["", "0 │ 0: 2", "1 │ 1: 2"]


def test_rich_draws_its_bars_too(pair: LiveNotebook) -> None:
    skip_without("rich")
    cell = pair.succeed(
        "%%sky\n"
        "from rich.progress import Progress\n"
        "with Progress() as progress:\n"
        "    tasks = [progress.add_task(name, total=9) for name in ('data', 'model')]\n"
        "    for step in range(9):\n"
        "        for task in tasks: progress.advance(task)\n"
        "print('after')"
    )
    assert cell.stdout == "after\n"
    [bars] = cell.shown
    assert [line.split()[0] for line in bars.splitlines()] == ["data", "model"]
    assert bars.count("100%") == 2
