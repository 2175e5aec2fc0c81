"""The stack that a rank writes on a signal, when it cannot answer by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from jupyter_sky.node.rank.inspection import stacks
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


def test_a_rank_that_is_only_slow_lives_on_when_it_is_asked_for_its_stack() -> None:
    with tempfile.TemporaryFile() as file:
        number = file.fileno()
        command = [sys.executable, "-c", BUSY, str(number)]
        with subprocess.Popen(command, pass_fds=[number]) as process:

            def answers() -> bool:
                assert process.poll() is None
                os.ftruncate(number, stacks.NAMES_SIZE)
                process.send_signal(stacks.STACKS_SIGNAL)
                time.sleep(0)  # it may be the turn of the process
                return stacks.is_whole(os.pread(number, os.fstat(number).st_size, 0))

            try:
                until(lambda: os.fstat(number).st_size >= stacks.NAMES_SIZE)
                for _ in range(ANSWERS):
                    until(answers)
            finally:
                process.kill()
