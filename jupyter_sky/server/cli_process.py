"""Runs ``jupyter sky`` in processes, for everything that kernels do not do.

SSH and AWS libraries are loaded there, never in the server. Threads wait for the processes, since
the server's event loop cannot on Windows.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from jupyter_sky.errors import SkyError, UsageError

USAGE = 2
"""The exit status of a command that was not understood, as everywhere in a terminal."""

_LONGEST = 4 * 2**20  # characters of an answer
_CHUNK = 64 * 1024  # bytes
_TIMEOUT = 3600.0  # seconds

_threads = ThreadPoolExecutor(8, "sky-terminal")
_streaming: set[subprocess.Popen[bytes]] = set()


async def run(*words: str, or_progress: bool = False) -> str:
    """Run a command and return its output; its progress, if asked for, where it has no output.

    Raises
    ------
    SkyError
        If it fails, with the sentence that it printed; a UsageError if the words were wrong.
    """
    process = partial(capture, command(*words), _TIMEOUT, env=_environment())
    try:
        done = await asyncio.get_running_loop().run_in_executor(_threads, process)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SkyError(f"`jupyter sky {words[0]}` cannot be run: {error}") from None
    if done.returncode:
        kind = UsageError if done.returncode == USAGE else SkyError
        raise kind(_error_sentence(done.stderr) or f"it ended with status {done.returncode}")
    return (done.stdout or (done.stderr if or_progress else ""))[-_LONGEST:]


def capture(
    command: Sequence[str],
    timeout: float,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a process without input to its end, in this thread; return its status and output.

    Raises
    ------
    OSError
        If it cannot be started.
    subprocess.TimeoutExpired
        If it takes more than ``timeout`` seconds; it is then killed.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=env,
        cwd=cwd,
        timeout=timeout,
    )


class StreamingCommand:
    """A command whose output is passed on as it arrives.

    Parameters
    ----------
    words
        The command.
    on_output
        Called with each chunk of its output, in the thread of `run`, which waits for the call.
    on_end
        Called in that thread at the end, with the sentence of an error, or an empty string.
    """

    def __init__(
        self,
        words: Sequence[str],
        on_output: Callable[[bytes], object],
        on_end: Callable[[str], object],
    ) -> None:
        self._words = words
        self._on_output = on_output
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self) -> None:
        """Run the command to its end, in the thread that calls this."""
        error = ""
        try:
            error = self._stream()
        except OSError as why:
            error = f"`jupyter sky {self._words[0]}` cannot be run: {why}"
        finally:
            self._on_end(error)

    def kill(self) -> None:
        """End the command; callable from any thread, even before it was started."""
        self._killed = True
        if self._process:
            self._process.kill()

    def _stream(self) -> str:
        """Run the process, and return the sentence of an error, or an empty string."""
        process = self._process = subprocess.Popen(
            command(*self._words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        )
        _streaming.add(process)
        try:
            if self._killed:
                process.kill()
            assert process.stdout and process.stderr
            while data := os.read(process.stdout.fileno(), _CHUNK):
                self._on_output(data)
            return _error_sentence(process.stderr.read().decode(errors="replace"))
        finally:
            process.kill()
            process.communicate()
            _streaming.discard(process)


@atexit.register
def _kill_all() -> None:
    for process in list(_streaming):
        process.kill()


def command(*words: str) -> list[str]:
    """Return the command line of ``jupyter sky`` with some words."""
    # -P: a `types.py` in the server's working directory must not hide the library's.
    return [sys.executable, "-P", "-m", "jupyter_sky", *words]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8:replace"}


def _error_sentence(stderr: str) -> str:
    """Return the last line that a command wrote to stderr, without the name of the command."""
    lines = stderr.strip().splitlines()
    return lines[-1][:1000].removeprefix("jupyter sky: ") if lines else ""
