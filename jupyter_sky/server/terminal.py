"""Running ``jupyter sky …`` for what no kernel does.

What reaches machines is loaded there, and never into the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator

from jupyter_sky.errors import SkyError, UsageError

USAGE = 2
"""The exit status of a command that was not understood, as everywhere in a terminal."""

_LONGEST = 4 * 2**20  # bytes of an answer


async def run(*words: str) -> str:
    """Run a command and return what it prints.

    Raises
    ------
    SkyError
        With its words, when it fails.
    """
    process = await _start(*words)
    try:
        out, err = await process.communicate()
    except BaseException:
        await _end(process)
        raise
    if process.returncode:
        kind = UsageError if process.returncode == USAGE else SkyError
        raise kind(complaint(err) or f"it ended with status {process.returncode}")
    return out[-_LONGEST:].decode(errors="replace")


@contextlib.asynccontextmanager
async def following(*words: str) -> AsyncIterator[Process]:
    """Run a command that goes on; it is ended when it is not wanted any more."""
    process = await _start(*words)
    try:
        yield process
    finally:
        await _end(process)


async def _start(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # Not from the folder that the server stands in: a `types.py` there is not the library's.
        "-P",
        "-m",
        "jupyter_sky",
        *words,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:replace"},
    )


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def complaint(said: bytes) -> str:
    """Return the sentence with which a command has ended."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:1000].removeprefix("jupyter sky: ") if lines else ""
