"""Waiting for the end of a fork server, which is a child of its agent or of a template."""

from __future__ import annotations

import asyncio
import contextlib
import os

import psutil


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
