"""Many calls on a pool, as a notebook, a terminal and the sidebar show them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.inventory import kernel_files
from tests.notebook.kernels import LiveNotebook
from tests.waiting import until

BAR = re.compile(r"200 calls of sleep +\d+%\|(█* *)\| (\d+)/200, .* left")

POOL = """
import os, sys, time
import jupyter_sky as sky

def sleep(number):
    time.sleep(0.02)
    while number >= 100 and not os.path.exists({go!r}):
        time.sleep(0.01)

pool = sky.ComputePool(nodes=2, name="many")
pool.__enter__()
"""

CALLS = "pool.map(sleep, range(200))"
"""Half of them, and the rest when there is a file."""


def test_a_cell_shows_how_far_its_calls_are(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    notebook = opened(runtime=str(tmp_path))
    go = tmp_path / "go"
    notebook.succeed(POOL.format(go=str(go)))
    try:
        cell = notebook.start(CALLS)
        notebook.until(cell, lambda cell: BAR.search(cell.stderr))
        # The sidebar reads it from this file.
        until(lambda: progress_of(tmp_path))
        shown = progress_of(tmp_path)
        go.touch()
        notebook.finish(cell)
        assert cell.error is None
        assert shown and shown["label"] == "calls"
        done, total = map(int, shown["count"].split("/"))  # none is, where it was just begun
        assert total == 200 and shown["part"] == pytest.approx(done / 200, abs=0.01)
        assert "200 calls of sleep: done in" in cell.stderr.splitlines()[-1]
        assert not BAR.search(notebook.succeed("pool.map(abs, [1, 2, 3])").stderr)
    finally:
        notebook.succeed("pool.__exit__(None, None, None)")
    until(lambda: progress_of(tmp_path) is None)


def progress_of(runtime: Path) -> Any:
    """What the kernels' files say of how far the present run is."""
    files = map(kernel_files.read, kernel_files.paths(runtime))
    reports = [report for file in files for report in file.clusters]
    runs = [report.snapshot["run"] for report in reports if report.snapshot["run"]]
    return next((run["progress"] for run in runs), None)


def test_a_terminal_shows_how_far_its_calls_are(home: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    pool = POOL.format(go=str(go))
    code = f"{pool}\n{CALLS}\nprint('that is all')\npool.__exit__(None, None, None)"
    ours, theirs = pty.openpty()
    os.set_blocking(ours, True)
    script = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "JUPYTER_SKY_HOME": str(home), "COLUMNS": "60"},
    )
    os.close(theirs)
    text = b""
    try:
        while piece := read(ours):
            text += piece
            if BAR.search(text.decode(errors="ignore")):
                go.touch()
        assert script.wait(60) == 0, text.decode()
    finally:
        script.kill()
        script.wait()
        os.close(ours)
    lines = text.decode().replace("\r\n", "\n").split("\r\x1b[2K")
    bars = [found for line in lines if (found := BAR.fullmatch(line))]
    counts = [int(found[2]) for found in bars]
    assert counts and counts[0] <= 100 and counts == sorted(counts)
    assert {len(found[1]) for found in bars} <= set(range(5, 31))
    # It takes one line, which the next takes back.
    assert max(len(line.rpartition("\n")[2]) for line in lines[:-1]) < 60
    assert re.fullmatch(r"200 calls of sleep: done in .*\nthat is all\n", lines[-1])


def read(terminal: int) -> bytes:
    """Read from a terminal; nothing when its program has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_a_log_file_has_no_bar(home: Path) -> None:
    pool = POOL.format(go="/")
    code = f"{pool}\npool.map(sleep, range(100))\npool.__exit__(None, None, None)"
    env = {**os.environ, "JUPYTER_SKY_HOME": str(home)}
    script = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (script.returncode, script.stdout, script.stderr) == (0, "", "")
