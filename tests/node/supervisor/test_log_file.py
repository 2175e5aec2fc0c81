"""The log of a rank, and what stands where in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_sky.node.supervisor.log_file import LogFile
from jupyter_sky.node.supervisor.log_index import RESOLUTION, LogIndex


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    return LogFile(tmp_path / "rank0.log")


def test_the_last_lines_are_those_of_a_terminal(log: LogFile) -> None:
    log.append(b"one\ntwo\r\n" + b"".join(b"\r%d %%" % part for part in range(101)) + b"\nlast")
    data = log.read(log.tail_start(2, 1000), 1000)
    assert data.startswith(b"\r0 %\r1 %")
    assert log.tail(2, 1000) == b"100 %\nlast"
    assert log.tail(3, 1000) == b"two\r\n100 %\nlast"
    assert log.tail(9, 1000) == b"one\ntwo\r\n100 %\nlast"
    assert log.tail(9, 6) == b"%\nlast"
    assert log.tail_start(1, 0) == log.size


def test_the_index_says_when_and_where_what_was_written(tmp_path: Path) -> None:
    now = 100.0
    index = LogIndex(tmp_path / "rank0.index", lambda: now)
    index.begin_run("r1", "train", 0)
    for offset in (0, 10, 20):  # at once, so that they are one piece
        index.add("stdout", offset)
    index.add("stderr", 30)
    index.begin_run("r2", "test", 40)
    index.add("stderr", 40)
    now += RESOLUTION
    index.add("stderr", 50)
    index.add("stderr", None)
    pieces = [
        (0, 100.0, "stdout"),
        (30, 100.0, "stderr"),
        (40, 100.0, "stderr"),
        (50, 100.0 + RESOLUTION, "stderr"),
    ]
    assert index.pieces(0, 60) == pieces
    assert index.pieces(29, 41) == pieces[:3]
    assert index.pieces(30, 40) == pieces[1:2]
    assert index.pieces(60, 60) == pieces[3:]
    runs = [(0, 100.0, "r1", "train"), (40, 100.0, "r2", "test")]
    assert index.runs(0, 60) == runs
    assert index.runs(39, 40) == runs[:1]
    assert index.runs(40, 60) == runs[1:]
    assert LogIndex(tmp_path / "empty.index").pieces(0, 9) == []
