"""What the user sees while machines become nodes: a bar for each, in a cell, a terminal, a file."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from jupyter_sky.providers.progress import Preparation, Step
from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT

HOSTS = ["lab1", "lab2", "lab3", "lab4"]


def test_a_cell_shows_a_bar_for_each_node(notebook: LiveNotebook) -> None:
    cell = notebook.start(f"%%sky --hosts {','.join(HOSTS)} --plugin none\npass")
    notebook.until(cell, lambda cell: cell.shown and "█" in cell.shown[0])
    first, *bars = cell.shown[0].splitlines()
    assert "preparing 4 nodes" in first
    assert [bar.split()[0] for bar in bars] == HOSTS
    assert all(set(bar.split()[1]) <= set("█░") for bar in bars)
    notebook.finish(cell)
    assert cell.error is None
    assert "4 ssh nodes" in cell.shown[0]
    assert "\n" not in cell.shown[0]


def test_a_node_that_fails_stays_to_be_seen(notebook: LiveNotebook) -> None:
    cell = notebook.run("%%sky --hosts lab1,lab2:2222,lab3 --plugin none\npass")
    assert "lab2:2222: nothing listens at" in cell.sentence
    first, *bars = cell.shown[0].splitlines()
    assert first.endswith(": failed")
    assert [bar.split()[0] for bar in bars] == ["lab1", "lab2:2222", "lab3"]
    assert ["failed: nothing listens" in bar for bar in bars] == [False, True, False]
    assert "prepared" in bars[0]


def test_of_many_nodes_those_are_shown_that_matter() -> None:
    steps = [Step(f"gpu{n}", "ready", 1.0) for n in range(30)]
    steps += [Step("slow", "installing 12 packages", 0.4), Step("bad", "no room", 0.4, failed=True)]
    first, *bars = Preparation(tuple(steps)).bars()
    assert first == "preparing 32 nodes, 30 ready, 1 failed"
    assert len(bars) == 17
    assert bars[-3].endswith("installing 12 packages")
    assert bars[-2].endswith("failed: no room")
    assert bars[-1] == "  and 16 more"
    assert str(Preparation(tuple(steps))) == f"{first}; slow: installing 12 packages"


SCRIPT = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "jupyter_sky")
shell.run_line_magic("config", "Sky.python = {python!r}")
shell.run_cell_magic("sky", "--hosts lab1,lab2,lab3,lab4 --plugin none", "pass")
shell.run_line_magic("sky", "down")
"""


def started(lab: Lab, **options) -> subprocess.Popen[bytes]:
    env = {**os.environ, "HOME": str(lab.home), "PYTHONPATH": str(ROOT), "COLUMNS": "50"}
    command = [sys.executable, "-c", SCRIPT.format(python=sys.executable)]
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, **options)


def test_a_terminal_draws_the_bars_over(lab: Lab) -> None:
    screen, keyboard = pty.openpty()
    process = started(lab, stdout=keyboard, stderr=keyboard)
    os.close(keyboard)
    text = b""
    try:
        while part := os.read(screen, 65536):
            text += part
    except OSError:  # so Linux says that nobody has it open any more
        pass
    assert process.wait() == 0, text.decode()
    os.close(screen)
    before, *frames = text.decode().replace("\r", "").split("\x1b[5F\x1b[J")
    assert "preparing 4 nodes" in before
    assert len(frames) > 2
    bars = frames[-2].splitlines()[1:]
    assert [bar.split()[0] for bar in bars] == HOSTS
    assert [bar.split()[-1] for bar in bars] == ["ready"] * 4
    # What comes then takes their place, as a whole: only bars are as long as the terminal is wide.
    assert re.search(r"4 ssh nodes, 4 ranks on CPU, .*ready in [\d.]+ s\n", frames[-1])
    assert "█" not in frames[-1]


def test_a_file_gets_a_line_when_a_node_has_got_on(lab: Lab) -> None:
    process = started(lab, stderr=subprocess.PIPE)
    lines = process.communicate()[1].decode().splitlines()
    assert process.returncode == 0
    assert len(set(lines)) == len(lines)
    assert all("\x1b" not in line and "█" not in line for line in lines)
    assert any("preparing 4 nodes; lab1: connecting" in line for line in lines)
    assert any("preparing 4 nodes, 4 ready" in line for line in lines)
