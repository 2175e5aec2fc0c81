"""Interrupts: raised in the user's code, wherever it is, and nowhere else."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from types import FrameType

import psutil
import pytest

from jupyter_sky.node.rank.deferral import _LONGEST, _WAIT_LINES
from jupyter_sky.node.rank.interrupts import Interrupts
from tests.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def own_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hook of this process again after each test."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = signal.getsignal(signal.SIGINT)
    yield Interrupts()
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_raised_in_what_is_allowed(interrupts: Interrupts) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupts.run_protected(lambda: interrupts.run_interruptible(interrupt))
    assert interrupts.was_requested and interrupts.was_raised


def test_it_is_not_raised_around_that(interrupts: Interrupts) -> None:
    def around() -> str:
        interrupts.run_interruptible(lambda: None)
        interrupt()
        return "went on"

    assert interrupts.run_protected(around) == "went on"
    assert not interrupts.was_raised


def test_one_that_is_repeated_before_anything_runs_does_no_harm() -> None:
    signal.signal(signal.SIGRTMAX, signal.SIG_DFL)
    fresh = Interrupts()
    assert callable(signal.getsignal(signal.SIGRTMAX)), "it would end this process"
    fresh.run_protected(fresh.repeat)
    assert fresh.run_interruptible(lambda: "runs") == "runs"


def test_it_waits_for_the_end_of_what_holds_it(interrupts: Interrupts) -> None:
    done = []

    def inner() -> None:
        interrupt()
        done.append("inner")

    def outer() -> None:
        interrupts.run_protected(inner)
        interrupts.run_protected(lambda: done.append("outer"))

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_protected(
            lambda: interrupts.run_interruptible(lambda: interrupts.run_protected(outer))
        )
    assert done == ["inner", "outer"]


def test_it_comes_again_after_a_finalizer(
    interrupts: Interrupts, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loader:
        def __del__(self) -> None:
            interrupt()
            finalizers.append("went on")

    def cell() -> None:
        loader: Loader | None = Loader()
        other: Loader | None = Loader()
        loader = other = None  # noqa: F841
        until(lambda: False)

    finalizers: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(cell)
    assert not finalizers and capsys.readouterr().err == ""


def test_it_is_put_off_until_it_is_repeated(interrupts: Interrupts) -> None:
    def cell() -> None:
        interrupts.run_ignoring(interrupt)
        assert interrupts.was_requested and not interrupts.was_raised
        sleep_till(interrupts.repeat)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(cell)


def sleep_till(wake: Callable[[], None]) -> None:
    """Sleep, and have another thread interrupt that."""
    thread = threading.Thread(target=wake)
    thread.start()
    try:
        time.sleep(600)
    finally:
        thread.join()


def test_a_repetition_wakes_a_system_call(interrupts: Interrupts) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(sleep_till, interrupts.repeat)


def test_a_repetition_is_for_those_who_have_not_heard(interrupts: Interrupts) -> None:
    def cell() -> str:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        interrupts.repeat()
        with pytest.raises(KeyboardInterrupt):
            sleep_till(lambda: interrupts.repeat(force=True))
        return "saved"

    assert interrupts.run_interruptible(cell) == "saved"


def test_a_handler_of_the_users_lasts_for_one_run(interrupts: Interrupts) -> None:
    def cell() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupt()

    interrupts.run_interruptible(cell)
    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(interrupt)


def test_what_a_handler_of_the_users_raises_is_raised_in_runs_alone(
    interrupts: Interrupts, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError("late")

    before = signal.getsignal(signal.SIGUSR1)
    try:
        interrupts.run_interruptible(signal.signal, signal.SIGUSR1, late)
        signal.raise_signal(signal.SIGUSR1)
        assert "TimeoutError: late" in capsys.readouterr().err
        with pytest.raises(TimeoutError):
            interrupts.run_interruptible(signal.raise_signal, signal.SIGUSR1)
        assert interrupts.run_interruptible(signal.getsignal, signal.SIGUSR1) is late
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_a_process_that_is_forked_it_has_no_frame_of_ours(interrupts: Interrupts) -> None:
    def is_raised_here() -> bool:
        try:
            interrupt()
        except KeyboardInterrupt as error:
            frames = [
                frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)
            ]
            return set(frames) == {__file__}
        return False

    child = interrupts.run_interruptible(os.fork)
    if child == 0:
        os._exit(0 if is_raised_here() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_has_not_begun_its_work_ends_without_a_word(
    interrupts: Interrupts, capfd: pytest.CaptureFixture[str]
) -> None:
    util.register_after_fork(interrupts, lambda _: interrupt())
    process = multiprocessing.get_context("fork").Process(target=print, args=("begun",))
    interrupts.run_interruptible(process.start)
    process.join()
    assert process.exitcode == 0 and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("where", ["BaseProcess.start", "_MultiProcessingDataLoaderIter.__init__"])
def test_processes_that_are_being_started_are_known_when_it_is_raised(
    interrupts: Interrupts, where: str
) -> None:
    def start() -> None:
        interrupt()
        started.append("all")

    started: list[str] = []
    start.__code__ = start.__code__.replace(co_qualname=where)

    def cell() -> None:
        start()
        until(lambda: False)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(cell)
    assert started == ["all"]


def test_it_leaves_no_lock_held_that_was_about_to_be_entered(interrupts: Interrupts) -> None:
    lock, entered = threading.Lock(), []

    class Held:
        def __enter__(self) -> None:
            lock.acquire()
            interrupt()

        def __exit__(self, *error: object) -> None:
            lock.release()

    def hold() -> None:
        with Held():
            entered.append(True)
            time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(hold)
    assert entered and not lock.locked()
    assert interrupts.run_interruptible(lambda: "runs") == "runs"


def test_a_process_that_stands_still_where_it_enters_a_lock_goes_on_to_hold_it() -> None:
    script = """
import os, signal, threading, time
from jupyter_sky.node.rank.interrupts import Interrupts
lock = threading.Lock()
class Held:
    def __enter__(self):
        lock.acquire()
        signal.raise_signal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.02)  # while the interrupt comes again
    def __exit__(self, *error):
        lock.release()
def hold():
    with Held():
        time.sleep(60)
try:
    Interrupts().run_interruptible(hold)
except KeyboardInterrupt:
    print("held" if lock.locked() else "free")
"""
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        stopped = psutil.Process(process.pid)
        until(lambda: stopped.status() == psutil.STATUS_STOPPED)
        time.sleep(2 * _LONGEST)
        stopped.resume()
        assert process.communicate(timeout=PATIENCE)[0] == "free\n"


def test_what_an_interrupt_ends_is_left_as_it_was_entered(interrupts: Interrupts) -> None:
    # As where a collective that waits is broken: it fails, and the interrupt comes after it.
    left = []

    class Changed:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            left.append(True)

    def fail() -> None:
        previous = sys.gettrace()

        def interrupt(frame: FrameType, event: str, arg: object) -> None:
            if frame.f_code is Changed.__exit__.__code__:
                sys.settrace(previous)
                signal.raise_signal(signal.SIGINT)

        with contextlib.suppress(RuntimeError), Changed():
            sys.settrace(interrupt)
            raise RuntimeError
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(fail)
    assert left


def test_wherever_it_comes_no_lock_stays_held(interrupts: Interrupts) -> None:
    lock = threading.Lock()

    def hold() -> None:
        threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            with lock:
                pass

    for _ in range(30):
        with pytest.raises(KeyboardInterrupt):
            interrupts.run_interruptible(hold)
        assert not lock.locked()


@pytest.mark.parametrize(
    "lock, event",
    [
        pytest.param(threading.Lock, "call", id="a lock, as events and queues have it"),
        pytest.param(threading.RLock, "line", id="one whose functions are written in C"),
    ],
)
def test_a_condition_has_its_lock_again_before_it_is_raised(
    interrupts: Interrupts, lock: Callable[[], threading.Lock], event: str
) -> None:
    condition, left = threading.Condition(lock()), []
    takes_again = max(_WAIT_LINES)

    def wait() -> None:
        previous = sys.gettrace()

        def interrupt(frame: FrameType, what: str, arg: object) -> object:
            function = frame.f_code.co_name
            if what == event and (function == "_acquire_restore" or frame.f_lineno == takes_again):
                sys.settrace(previous)
                signal.raise_signal(signal.SIGINT)
            return interrupt if function == "wait" else None

        with condition:
            sys.settrace(interrupt)
            condition.wait(timeout=0.001)
            left.append(list(vars(condition)["_waiters"]))
            until(lambda: False)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(wait)
    assert left == [[]]  # the next `notify` is for another one


def test_what_is_imported_is_imported_whole(
    interrupts: Interrupts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `asyncio` does it: after an interrupt, `first` would be no attribute of the package.
    package = tmp_path / "imported_whole"
    package.mkdir()
    (package / "__init__.py").write_text("from .first import *\nfrom .second import *\nfirst")
    (package / "first.py").touch()
    # More often than there are moments for which one is deferred.
    once = "import os, signal\nif os.environ.pop('INTERRUPT', ''): "
    once += "[signal.raise_signal(2) for _ in range(200)]"
    (package / "second.py").write_text(once)
    monkeypatch.setenv("INTERRUPT", "1")
    monkeypatch.syspath_prepend(tmp_path)

    def cell() -> None:
        import imported_whole  # noqa: F401

        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(cell)
    assert importlib.import_module("imported_whole").first


def test_a_library_has_more_time_to_be_imported_than_a_module_of_the_user(
    interrupts: Interrupts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_sky.node.rank.deferral._LONGEST_OWN_IMPORT", 0.05)
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    (libraries / "takes_time.py").write_text(
        "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0.2)\nis_whole = True"
    )
    (tmp_path / "imports_it.py").write_text("import time, takes_time\ntime.sleep(60)")
    for folder in (tmp_path, libraries):
        monkeypatch.syspath_prepend(folder)
    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(importlib.import_module, "imports_it")
    assert sys.modules["takes_time"].is_whole


def test_an_import_that_goes_on_and_on_is_interrupted(
    interrupts: Interrupts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_sky.node.rank.deferral._LONGEST_OWN_IMPORT", 0.05)
    loop = "import signal, time\nsignal.raise_signal(signal.SIGINT)\nwhile True: time.sleep(60)"
    (tmp_path / "imported_on_and_on.py").write_text(loop)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(importlib.import_module, "imported_on_and_on")


def test_it_is_raised_where_a_lock_is_waited_for(interrupts: Interrupts) -> None:
    lock = threading.Lock()
    lock.acquire()

    def wait() -> None:
        threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGINT)).start()
        with lock:
            pass

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_interruptible(wait)
