"""What a process does with work that the user has stopped waiting for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE

PROGRAM = """
import asyncio, sys
from jupyter_sky.transport import event_loop

async def work():
    print("begun", flush=True)
    try:
        await asyncio.sleep(600 if {is_cancelled} else 0.5)
    finally:
        print("cleaning up", flush=True)
        await asyncio.sleep(0.5)
        print("completed", flush=True)

event_loop.{wait}(work())
"""


@pytest.mark.parametrize(
    ("wait", "presses"),
    [("wait_uninterrupted", ["begun"]), ("wait_with_cleanup", ["begun", "cleaning up"])],
)
def test_what_ctrl_c_stops_waiting_for_is_completed_before_the_process_ends(
    wait: str, presses: list[str]
) -> None:
    program = PROGRAM.format(wait=wait, is_cancelled=len(presses) > 1)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for line in presses:
            assert process.stdout.readline().strip() == line
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out.endswith("completed\n")
    assert "waiting until what was stopped is ended; Ctrl-C leaves it as it is" in err
