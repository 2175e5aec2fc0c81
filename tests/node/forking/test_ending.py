"""Waiting for the end of a process, whosever child it is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from jupyter_sky.node.forking.ending import end_in_time, end_of

LEAVES_ANOTHER = """
import subprocess
nothing = subprocess.DEVNULL
print(subprocess.Popen(["sleep", "600"], stdout=nothing, stderr=nothing).pid)
"""


def test_the_end_is_noticed_of_a_child_and_of_another_process() -> None:
    left = subprocess.run([sys.executable, "-c", LEAVES_ANOTHER], capture_output=True, text=True)
    with subprocess.Popen(["sleep", "600"]) as child:
        asyncio.run(_kill_and_wait([child.pid, int(left.stdout)]))


async def _kill_and_wait(pids: list[int]) -> None:
    waiting = [asyncio.create_task(end_of(pid)) for pid in pids]
    _, still = await asyncio.wait(waiting, timeout=0.05)
    assert len(still) == len(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.gather(*waiting), timeout=60)


def test_a_process_that_is_gone_has_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    asyncio.run(asyncio.wait_for(end_of(process.pid), timeout=60))


def test_a_process_that_does_not_end_in_time_is_killed() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        asyncio.run(asyncio.wait_for(end_in_time(process.pid, within=0.05), timeout=60))
        assert process.wait(timeout=60) == -signal.SIGKILL
