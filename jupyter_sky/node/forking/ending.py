"""Waiting for the end of a fork server, which is a child of its agent or of a template."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import psutil

ENDS_WITHIN = 30.0
"""Seconds for a fork server to end, which may wait for a network drive."""


async def end_in_time(pid: int, within: float = ENDS_WITHIN) -> None:
    """Wait until a process has ended, which was asked to; kill it if it does not in time."""
    try:
        async with asyncio.timeout(within):
            await end_of(pid)
    except TimeoutError:
        # Even this may take effect only once the drive answers: nothing is worth waiting for that.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def end_of(pid: int) -> None:
    """Wait until a process has ended; it need not be a child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a system without pidfds
        await asyncio.to_thread(_wait, pid)
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _wait(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
        return
    with contextlib.suppress(psutil.Error):
        psutil.Process(pid).wait()
