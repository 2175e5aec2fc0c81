"""Figures of a script's processes, through the pipe to the rank beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_sky.node.rank.metrics.script_feed import ScriptFeed
from jupyter_sky.transport.metrics import script_metrics
from tests.waiting import until

Taken = list[tuple[dict[str, float], float | None, int | None]]

_LOGS = """
import os, sys, jupyter_sky as sky
sky.log(step=3, loss=0.5, **{"ä" * 100: 1})
sky.log(loss=float("nan"))
for _ in range(2):
    if not os.fork():
        sky.log(loss=7)  # as a worker of a DataLoader
        os._exit(0)
    os.wait()
os.environ["RANK"] = "x"
sky.log({"𐍈" * 100: 2, "\\1" * 100: 3})
if not os.fork():
    os.environ["RANK"] = "5"  # as what a launcher forks
    sky.log(loss=8)
    os._exit(0)
os.wait()
"""


def _run(code: str, path: Path) -> str:
    """Run a script; return what it has written to stderr."""
    env = os.environ | {script_metrics.PATH: str(path), "RANK": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, check=True, text=True, stderr=subprocess.PIPE).stderr


def test_each_process_has_its_own_rank(tmp_path: Path) -> None:
    taken: Taken = []
    feed = ScriptFeed(tmp_path / "feed", lambda *each: taken.append(each))
    feed.begin()
    assert feed.path.stat().st_mode & 0o777 == 0o600
    [told] = _run(_LOGS, feed.path).splitlines()
    assert told.startswith("sky.log: what processes log that a rank has started, like the workers")
    feed.end()
    assert not feed.path.exists()
    assert taken[0] == ({"loss": 0.5}, 3.0, 1)
    assert taken[1] == ({"ä" * 100: 1.0}, 3.0, 1)
    assert taken[2][0]["loss"] != taken[2][0]["loss"]
    assert taken[3] == ({"𐍈" * 100: 2.0}, None, None)
    [name] = taken[4][0]
    assert set(name) == {"\1", "…"}  # a line is whole, whatever the name
    assert taken[5:] == [({"loss": 8.0}, None, 5)]
    _run("import jupyter_sky as sky\nsky.log(loss=1)", feed.path)  # when the script is over


def test_very_many_figures_all_arrive(tmp_path: Path) -> None:
    taken: Taken = []
    feed = ScriptFeed(tmp_path / "feed", lambda *each: taken.append(each))
    feed.begin()
    patient = "from jupyter_sky.transport.metrics import script_metrics as m\nm._PATIENCE = 60_000"
    _run(f"{patient}\nimport jupyter_sky as sky\nfor n in range(20_000): sky.log(n=n)", feed.path)
    feed.end()
    assert [values["n"] for values, _, _ in taken] == list(range(20_000))


def test_who_takes_nothing_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_metrics, "_PATIENCE", 1)
    path = tmp_path / "feed"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    metrics = script_metrics.ScriptMetrics(str(path))
    for n in range(20_000):
        metrics.log({"n": n}, None)
    lines = os.read(reader, 1 << 20)
    first = [value for _, _, _, value in script_metrics.parse(lines)]
    assert first == list(range(len(first)))
    assert len(first) < 20_000
    # Who takes some again gets what comes then; who is gone, nothing any more.
    metrics.log({"n": -1}, None)
    assert list(script_metrics.parse(os.read(reader, 1 << 20))) == [(None, None, "n", -1.0)]
    os.close(reader)
    metrics.log({"n": 1}, None)
    metrics.log({"n": 2}, None)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{", b"[0, 1, 2, 3]", b'[0, 1, "a", "b"]', b'[-1, 1, "a", 2]', b"\xff",
     b"[" * 10_000, b'[true, 1, "a", 2]', b'[0, 1, "a", 1' + b"0" * 5000 + b"]"],
)  # fmt: skip
def test_what_is_no_figure_is_passed_over(tmp_path: Path, line: bytes) -> None:
    taken: Taken = []
    feed = ScriptFeed(tmp_path / "feed", lambda *each: taken.append(each))
    feed.begin()
    with feed.path.open("wb") as pipe:
        pipe.write(line + b'\n[0, null, "a", 2]\n' + b"x" * 200_000 + b'\n[0, 1, "b", 3]')
        until(lambda: taken)
    feed.end()
    assert taken == [({"a": 2.0}, None, 0), ({"b": 3.0}, 1.0, 0)]
