"""The log of a rank, and what stands where in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.output.log_index import RESOLUTION, LogIndex
from tests.waiting import until


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


def test_what_a_rank_printed_is_not_lost_behind_its_progress_bar(log: LogFile) -> None:
    log.append(b"of an earlier run\n")
    since = log.size
    log.append(b"one\n")
    assert log.shown(since, 100) == b"one\n"
    bar = b"".join(b"\r%3d %% of the epoch" % part for part in range(101))
    log.append(bar + b"\n" + bar)
    assert len(bar) > 1000
    assert log.shown(since, 1000) == b"one\n100 % of the epoch\n100 % of the epoch"
    assert log.shown(since, 10) == b" the epoch"
    assert log.shown(since, 0) == b""


def test_what_is_dropped_in_the_middle_does_not_take_the_end_with_it(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "rank0.log", beginning=16, end=64)
    for number in range(1000):
        log.append(b"line %d\n" % number)
    assert log.shown(0, 18) == b"line 998\nline 999\n"


def test_a_long_line_is_searched_once_and_not_from_each_of_its_characters(log: LogFile) -> None:
    size = 1024 * 1024  # from each of them, that takes an hour
    log.append(b"x" * size + b"\nand then\r")
    assert log.tail(1, size) == b"and then\r"
    assert len(log.tail(2, size)) == size


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


def test_no_time_of_a_log_jumps_where_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, began = LogIndex(tmp_path / "rank0.index"), time.time()
    index.add("stdout", 0)
    monkeypatch.setattr(time, "time", lambda: began - 3600)
    until(lambda: index.add("stdout", 10) or len(index.pieces(0, 20)) == 2)
    index.begin_run("r1", "train", 20)
    times = [written for _, written, _ in index.pieces(0, 20)] + [index.runs(0, 30)[0][1]]
    assert times == sorted(times)
    assert times[0] > began - 60


def test_a_log_that_was_cut_begins_anew(tmp_path: Path) -> None:
    index = LogIndex(tmp_path / "rank0.index", lambda: 100.0)
    index.begin_run("r1", "train", 0)
    index.add("stdout", 1000)
    index.add("stdout", 5)
    assert index.pieces(0, 9) == [(5, 100.0, "stdout")]
    assert index.runs(0, 9) == []


def written(log: LogFile, *pieces: bytes) -> bytes:
    for piece in pieces:
        assert log.append(piece) == log.size - len(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("piece", [1, 3, 7, 10, 64])
def test_of_a_long_log_beginning_and_end_are_kept(tmp_path: Path, piece: int) -> None:
    log = LogFile(tmp_path / "rank0.log", beginning=10, end=20)
    text = bytes(range(200))
    for start in range(0, 200, piece):
        log.append(text[start : start + piece])
        so_far = text[: start + piece]
        oldest = max(10, len(so_far) - 20)
        assert log.size == len(so_far)
        assert log.read(0, 100) == so_far[: 10 if oldest > 10 else None]
        assert [log.kept_from(at) for at in (9, 10, 500)] == [9, oldest, 500]
        for at in range(oldest, len(so_far)):
            assert log.read(at, 5) == so_far[at : at + 5]
    assert log.read(30, 5) == b""
    assert log.tail(1, 1000) == text[180:]
    files = [tmp_path / "rank0.log", tmp_path / "rank0.end"]
    assert [each.stat().st_size for each in files] == [10, 20]


def test_a_long_log_that_the_user_has_cut_begins_anew(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "rank0.log", beginning=10, end=20)
    written(log, b"x" * 50)
    (tmp_path / "rank0.log").write_bytes(b"")
    assert log.append(b"new") == 0
    assert (log.size, log.read(0, 100)) == (3, b"new")
    assert not (tmp_path / "rank0.end").exists()
    written(log, b"y" * 20)
    assert log.read(0, 100) == b"new" + b"y" * 20


def test_the_index_of_a_long_log_has_its_beginning_and_its_end(tmp_path: Path) -> None:
    now = 0.0
    index = LogIndex(tmp_path / "rank0.index", lambda: now, first=5, last=10)
    for number in range(47):
        now = float(number)
        index.add("stdout", 10 * number)
    kept = [*range(5), *range(37, 47)]
    pieces = [(10 * number, float(number), "stdout") for number in kept]
    assert index.pieces(0, 1000) == pieces
    for at, (offset, _, _) in enumerate(pieces):
        assert index.pieces(offset, 1000) == pieces[at:]
        assert index.pieces(offset, offset + 1) == pieces[at : at + 1]
    assert (tmp_path / "rank0.index").stat().st_size == 15 * 17
