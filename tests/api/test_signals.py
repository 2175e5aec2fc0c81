"""Signals that end a script while its pool is up: they end the pool first, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.control.signals import as_interrupt
from jupyter_sky.cluster.inventory import registry
from tests.paths import ROOT
from tests.waiting import PATIENCE

_SCRIPT = """
import os, pathlib, sys, time
import jupyter_sky as sky

@sky.compute
def train(saved):
    try:
        print("begun", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        pathlib.Path(saved, str(sky.instance_info().rank)).touch()
        raise

with sky.ComputePool(nodes=2, name="nightly") as pool:
"""

_CALLS = {
    "@": "    train(sys.argv[1]) @ pool",
    ">": "    (train(sys.argv[1]) > pool).result()",
    "map": "    pool.map(train, 2 * [sys.argv[1]])",
    "none": "    print('begun', flush=True)\n    time.sleep(600)",
    "ignores the first": """\
    try:
        train(sys.argv[1]) @ pool
    except KeyboardInterrupt:
        print("again", flush=True)
    time.sleep(600)""",
}


_ENDING = """
import asyncio, pathlib, sys
from jupyter_sky.cluster.control.signals import as_interrupt
from jupyter_sky.transport import event_loop

async def end():
    print("ending", flush=True)
    while not pathlib.Path(sys.argv[1], "go on").exists():
        await asyncio.sleep(0.01)
    pathlib.Path(sys.argv[1], "ended").touch()

with as_interrupt():
    event_loop.wait_uninterrupted(end())
"""


def _begin(code: str, folder: Path) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(_SCRIPT + code)
    words = [sys.executable, str(script), str(folder)]
    pipe = subprocess.PIPE
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=variables, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("how", [each for each in _CALLS if each[0] != "i"])
def test_a_signal_ends_the_pool_before_its_script(
    tmp_path: Path, how: str, number: signal.Signals
) -> None:
    script = _begin(_CALLS[how], tmp_path)
    for _ in range(2 if how == "@" else 1):
        assert script.stdout and script.stdout.readline().endswith("begun\n")
    script.send_signal(number)
    script.send_signal(number)  # as `timeout` does: to the script, and to its group
    _, err = script.communicate(timeout=PATIENCE)
    assert script.returncode == -number, err
    assert registry.rows() == []
    if how == "@":
        assert {each.name for each in tmp_path.iterdir()} == {"0", "1", "script.py"}, err


def test_a_signal_while_the_pool_ends_lets_it_end(tmp_path: Path) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", _ENDING, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout and script.stdout.readline() == "ending\n"
    script.send_signal(signal.SIGTERM)
    assert script.stderr and "waiting until what was stopped is ended" in script.stderr.readline()
    (tmp_path / "go on").touch()
    _, err = script.communicate(timeout=PATIENCE)
    assert script.returncode == -signal.SIGTERM, err
    assert (tmp_path / "ended").exists()


def test_a_script_that_goes_on_after_a_signal_is_ended_by_the_next(tmp_path: Path) -> None:
    script = _begin(_CALLS["ignores the first"], tmp_path)
    assert script.stdout and script.stdout.readline().endswith("begun\n")
    script.send_signal(signal.SIGTERM)
    while script.stdout.readline() != "again\n":
        assert script.poll() is None
    while script.poll() is None:  # none counts that comes within a second of another
        script.send_signal(signal.SIGTERM)
        try:
            script.wait(1.5)
        except subprocess.TimeoutExpired:
            continue
    assert script.returncode == -signal.SIGTERM
    assert registry.rows() == []
    script.communicate()


def test_an_error_of_a_call_is_said_in_words_of_a_terminal(tmp_path: Path) -> None:
    code = "    raise sky.errors.SkyError('it is lost: `%sky down nightly` ends it.')"
    _, err = _begin(code, tmp_path).communicate(timeout=PATIENCE)
    said = "jupyter_sky.errors.SkyError: it is lost: `jupyter sky down nightly` ends it."
    assert err.splitlines()[-1] == said


def test_a_name_that_is_taken_is_said_in_words_of_a_terminal(tmp_path: Path) -> None:
    with sky.ComputePool(name="nightly"):
        script = _begin(_CALLS["none"], tmp_path)
        _, err = script.communicate(timeout=PATIENCE)
    assert err.splitlines()[-1] == (
        "jupyter_sky.errors.NameTaken: there is a cluster nightly already: end it with `jupyter "
        "sky down nightly`, or use it in cells of a notebook with `%%sky --cluster nightly`."
    )


def test_handlers_of_the_user_are_kept() -> None:
    came: list[int] = []
    usual = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
        with as_interrupt():
            signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with as_interrupt():
            signal.signal(signal.SIGTERM, lambda number, frame: came.append(-number))
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM, -signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, usual)


def test_a_forked_child_ends_at_once() -> None:
    usual = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with as_interrupt():
            assert _exit_code_of_child() == -signal.SIGTERM
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            assert _exit_code_of_child() == 1, "the user's own handler counts there, too"
    finally:
        signal.signal(signal.SIGTERM, usual)


def _exit_code_of_child() -> int:
    pid = os.fork()
    if pid == 0:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
