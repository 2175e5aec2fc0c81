"""What calls print that run at once on a rank: each shows its own."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.batches import Event
from jupyter_sky.api.calls.progress import ProgressBar
from jupyter_sky.api.calls.terminal import write
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.cluster.calls.assignments import Assignments
from jupyter_sky.cluster.calls.batch import Batch, BatchedCall, CallResult
from jupyter_sky.transport.protocol.events import Display, Output
from tests.api.calls.test_calls import worker
from tests.waiting import until

CALLS = 4  # two on each rank


@sky.compute
def say(folder: Path, name: str, how: str) -> str:
    """Print while all calls run."""
    (folder / name).touch()
    while len(list(folder.iterdir())) < CALLS:
        time.sleep(0.005)
    print(name, end=" ")
    print("begins")
    for line in range(3):
        text = f"{name} {line}"
        if how == "threads":
            thread = threading.Thread(target=print, args=(text,))
            thread.start()
            thread.join()
        elif how == "programs":
            subprocess.run(["echo", text], check=True)
        else:
            print(text)
        print(f"{text} err", file=sys.stderr)
    return name


@sky.compute
def show(folder: Path, name: str) -> None:
    """Display something while all calls run."""
    from IPython.display import display

    (folder / name).touch()
    while len(list(folder.iterdir())) < CALLS:
        time.sleep(0.005)
    display({"text/plain": name}, raw=True)


@pytest.mark.parametrize(
    ("executor", "how"),
    [("thread", "print"), ("thread", "threads"), ("process", "print"), ("process", "programs")],
)
def test_what_a_call_prints_is_shown_where_that_call_was_made(
    pool: sky.ComputePool, tmp_path: Path, executor: Any, how: str
) -> None:
    names = [f"call{number}" for number in range(CALLS)]
    with worker(pool, Worker(concurrency=2, executor=executor)):
        events = followed(pool, [say(tmp_path, name, how) for name in names])
    for name, mine in zip(names, events, strict=True):
        lines = [f"{name} {line}" for line in range(3)]
        assert printed(mine, "stdout") == "\n".join([f"{name} begins", *lines, ""])
        assert printed(mine, "stderr") == "".join(f"{line} err\n" for line in lines)


def test_what_a_call_displays_is_shown_where_that_call_was_made(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    names = [f"call{number}" for number in range(CALLS)]
    with worker(pool, Worker(concurrency=2)):
        events = followed(pool, [show(tmp_path, name) for name in names])
    shown = [
        [each.data["text/plain"] for each in mine if isinstance(each, Display)] for mine in events
    ]
    assert shown == [[name] for name in names]


@sky.compute
def show_quietly() -> None:
    """Display something on each rank, and something more where it may print."""
    from IPython.display import clear_output, display

    info = sky.instance_info()
    assert info is not None
    clear_output()
    display({"text/plain": f"of {info.rank}", "text/html": "<b>seen</b>"}, raw=True)
    sky.stdout(only="head")(display)({"text/plain": f"alone {info.rank}"}, raw=True)
    sky.silent(display)({"text/plain": "hidden"}, raw=True)


def test_a_script_prints_what_calls_display_on_ranks_that_may_print(
    pool: sky.ComputePool, capsys: pytest.CaptureFixture[str]
) -> None:
    _ = show_quietly() @ pool
    assert sorted(capsys.readouterr().out.splitlines()) == ["alone 0", "of 0", "of 1"]
    _ = (show_quietly() & show_quietly()) >> pool
    assert sorted(capsys.readouterr().out.splitlines()) == ["alone 0", "of 0", "of 1"]


def test_what_is_printed_after_calls_at_once_is_no_call_s(pool: sky.ComputePool) -> None:
    with worker(pool, Worker(concurrency=2)):
        followed(pool, [say_twice(n) for n in range(4)])
    events = followed(pool, [say_twice(n) for n in range(4)])
    assert [printed(mine, "stdout") for mine in events] == [f"{n}\n{n}\n" for n in range(4)]


@sky.compute
def say_later(folder: Path, name: str) -> None:
    """Print in a thread, once this call has ended and another process says so."""

    def say() -> None:
        while not (folder / f"{name} may").exists():
            time.sleep(0.005)
        print(name, flush=True)
        (folder / name).touch()

    threading.Thread(target=say).start()


@sky.compute
def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def test_what_a_rank_prints_between_its_calls_is_shown_where_another_is_awaited(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    heard: list[Event] = []
    said: list[Event] = []
    assert pool._batches is not None
    calls = [wait_for(tmp_path / "go"), say_later(tmp_path, "thread")]
    for call, events in zip(calls, (heard, said), strict=True):
        batch, _ = pool._batches.pack([call], events.append)
        pool._batches.submit(batch)
    until(lambda: said)
    (tmp_path / "thread may").touch()
    until(lambda: printed(heard, "stdout"))
    (tmp_path / "go").touch()
    until(lambda: isinstance(heard[-1], CallResult))
    assert printed(heard, "stdout") == "thread\n"


@pytest.mark.parametrize("in_a_batch", [False, True])
def test_what_was_printed_after_a_call_is_told_in_the_next_one(
    pool: sky.ComputePool, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_a_batch: bool
) -> None:
    _ = pool.map(say_later, [tmp_path], ["thread"])
    until(lambda: not pool.cluster.state.is_in_use)
    (tmp_path / "thread may").touch()
    until((tmp_path / "thread").exists)
    if in_a_batch:
        pool.map(wait_for, [tmp_path / "thread"])
    else:
        _ = wait_for(tmp_path / "thread") @ pool
    said = "printed 1 line after its last call had ended: `jupyter sky logs"
    assert re.fullmatch(rf"rank (\d) {said} \1` shows it\.\n", capsys.readouterr().err)


@sky.compute
def say_twice(number: int) -> None:
    print(number)
    subprocess.run(["echo", str(number)], check=True)


def followed(pool: sky.ComputePool, calls: list[Any]) -> list[list[Event]]:
    """Carry out each call as a batch of its own, and return what each of them heard."""
    assert pool._batches is not None
    events: list[list[Event]] = [[] for _ in calls]
    for call, mine in zip(calls, events, strict=True):
        batch, _ = pool._batches.pack([call], mine.append)
        pool._batches.submit(batch)
    until(lambda: all(isinstance(mine[-1], CallResult) for mine in events if mine) and all(events))
    return events


def printed(events: list[Event], stream: str) -> str:
    pieces = [each.data for each in events if isinstance(each, Output) and each.stream == stream]
    return b"".join(pieces).decode()


def test_a_bar_does_not_count_the_time_in_which_calls_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    now = time.monotonic()
    bar = ProgressBar(4, "calls", began=now - 600)
    bar.advance(now)
    assert shown.getvalue() == ""  # it may be over at once
    bar.advance(now - 2)
    assert "2/4, 2 s left" in shown.getvalue()
    update: Any = None
    batch = Batch([], update, {"concurrency": 1, "executor": "thread"}, 0, "", print, None)
    Assignments().add(BatchedCall(batch, 0), rank=0)
    assert batch.began
    assert batch.began >= now


@sky.compute
def write_bytes(parts: list[bytes]) -> None:
    for part in parts:
        os.write(1, part)
        time.sleep(0.05)  # each is a piece of its own


def test_pieces_that_end_within_a_character_are_put_together(
    pool: sky.ComputePool, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "ж▌漢🚀"
    _ = write_bytes([bytes([each]) for each in text.encode()]) >> pool
    assert capfd.readouterr().out == text


def test_a_terminal_is_not_commanded_by_what_calls_show(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = "\x1b[1mbold\x1b[0m\x1b]52;c;ZXZpbA==\x07\x1b[6n"
    write(Output(0, "r1", "stdout", evil.encode()))
    write(Display(0, "r1", "display", {"text/plain": evil}))
    assert capsys.readouterr().out == "\x1b[1mbold\x1b[0m" * 2 + "\n"


def test_what_is_too_much_to_show_is_said_to_be_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(Output(3, "r1", "stdout", b"further\n", skipped_lines=1200, skipped_bytes=34_000))
    assert capsys.readouterr().out == (
        "\n[… 1,200 lines, 34 kB not shown here: `jupyter sky logs 3 --save FILE` has all of them "
        "…]\nfurther\n"
    )
