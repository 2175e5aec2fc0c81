"""The stack that a rank writes on a signal, when it cannot answer by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.node.supervisor.inspection import Inspection
from tests.waiting import until

BUSY = """
import sys, threading
from jupyter_sky.node.rank.inspection.stacks import StackFile

def calls(depth):
    exec("def new(): return 1\\nnew()", {})
    return calls(depth - 1) if depth else 0

def _become_rank():
    while True:
        calls(20)

StackFile(int(sys.argv[1]))
for _ in range(3):
    threading.Thread(target=_become_rank, daemon=True).start()
_become_rank()
"""

ANSWERS = 300
"""A process whose threads were all read did not live to give as many, in any of a dozen trials."""


@contextlib.contextmanager
def rank(program: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a program that writes its stack into a file; yield its process and the file."""
    with tempfile.TemporaryFile() as file:
        number = file.fileno()
        command = [sys.executable, "-c", program, str(number)]
        with subprocess.Popen(command, pass_fds=[number]) as process:
            try:
                until(lambda: os.fstat(number).st_size >= stacks.NAMES_SIZE)
                yield process, number
            finally:
                process.kill()


def test_a_rank_that_is_only_slow_lives_on_when_it_is_asked_for_its_stack() -> None:
    with rank(BUSY) as (process, file):

        def answers() -> bool:
            assert process.poll() is None
            if not stacks.MainThreadState.of(process.pid).is_asleep:
                return False
            os.ftruncate(file, stacks.NAMES_SIZE)
            process.send_signal(stacks.STACKS_SIGNAL)
            time.sleep(0)  # it may be the turn of the process
            return stacks.is_whole(os.pread(file, os.fstat(file).st_size, 0))

        for _ in range(ANSWERS):
            until(answers)


def written_stacks(process: subprocess.Popen[bytes], file: int) -> Iterator[list[Any] | None]:
    """Have an agent ask again and again for the stack of a rank whose side thread is silent."""
    there: Any = SimpleNamespace(
        rank=0, pid=process.pid, stacks=file, send_aside=lambda command: None
    )
    inspection = Inspection({0: there}, lambda run: False)
    with asyncio.Runner() as runner:
        while True:
            yield runner.run(inspection.written_stack(there))


def test_a_rank_that_does_not_get_the_processor_is_not_interrupted_in_the_middle_of_a_call() -> (
    None
):
    with rank(BUSY) as (process, file):
        until(lambda: not stacks.MainThreadState.of(process.pid).is_asleep)
        process.send_signal(signal.SIGSTOP)
        assert next(written_stacks(process, file)) is None
        process.send_signal(signal.SIGCONT)
        used = stacks.MainThreadState.of(process.pid).used
        until(lambda: stacks.MainThreadState.of(process.pid).used > used)
        assert os.fstat(file).st_size == stacks.NAMES_SIZE, "it was sent the signal"


def test_a_rank_that_keeps_python_to_itself_writes_its_stack() -> None:
    for call in ("pow(3, 10**9)", "ctypes.PyDLL(None).sleep(600)"):
        program = f"""
import ctypes, sys
from jupyter_sky.node.rank.inspection.stacks import StackFile

def _become_rank():
    exec(compile({call!r}, "/mine.py", "exec"), {{"ctypes": ctypes}})

StackFile(int(sys.argv[1]))
_become_rank()
"""
        with rank(program) as (process, file):
            asked = written_stacks(process, file)
            until(lambda asked=asked: next(asked))
