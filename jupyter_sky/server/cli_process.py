"""Runs ``jupyter sky`` in processes, for everything that kernels do not do.

SSH and AWS libraries are loaded there, never in the server. Threads wait for the processes, since
the server's event loop cannot on Windows. The server ends without waiting for what only reads.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_duration

USAGE = 2
"""The exit status of a command that was not understood, as everywhere in a terminal."""

_LONGEST = 4 * 2**20  # characters of an answer
_CHUNK = 64 * 1024  # bytes
_TIMEOUT = 3600.0  # seconds
_UNDONE_WITHIN = 120.0  # seconds for what takes longer to undo what it has half done

T = TypeVar("T")

_running: set[subprocess.Popen[Any]] = set()


async def run(
    *words: str, only: str | None = None, acts: bool = False, timeout: float = _TIMEOUT
) -> str:
    """Run a command and return its output.

    Parameters
    ----------
    words
        The words after ``jupyter sky``.
    only
        As of `command`.
    acts
        Whether it changes something: its progress is returned where it has no output, and the
        server's end waits for it.
    timeout
        Seconds after which it is killed, or is asked to end if it changes something.

    Raises
    ------
    SkyError
        If it fails, with the sentence that it printed; a UsageError if the words were wrong.
    """
    process = partial(
        capture,
        command(*words, only=only),
        timeout,
        env=_environment(),
        ends_within=_UNDONE_WITHIN if acts else 0.0,
    )
    try:
        done = await _in_thread(process, daemon=not acts)
    except OSError as error:
        raise SkyError(f"`jupyter sky {words[0]}` cannot be run: {error}") from None
    except subprocess.TimeoutExpired as late:
        stopped = f"was stopped as it took longer than {format_duration(timeout)}"
        said = late.stderr if isinstance(late.stderr, str) else ""  # bytes of one that was killed
        end = f": {_last_line(said)}" if said.strip() else "."
        raise SkyError(f"`jupyter sky {words[0]}` {stopped}{end}") from None
    if done.returncode:
        kind = UsageError if done.returncode == USAGE else SkyError
        raise kind(_last_sentence(words, done.returncode, done.stderr))
    return (done.stdout or (done.stderr if acts else ""))[-_LONGEST:]


async def _in_thread(function: Callable[[], T], daemon: bool) -> T:
    """Call a function in a new thread: the end of this process waits for all threads of pools."""
    future: Future[T] = Future()

    def call() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=call, name="sky-terminal", daemon=daemon).start()
    return await asyncio.wrap_future(future)


def capture(
    command: Sequence[str],
    timeout: float,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    ends_within: float = 0.0,
) -> subprocess.CompletedProcess[str]:
    """Run a process without input to its end, in this thread; return its status and output.

    Parameters
    ----------
    command, env, cwd
        As of `subprocess.Popen`.
    timeout
        Seconds after which it is stopped.
    ends_within
        Seconds that it then has between SIGTERM and SIGKILL.

    Raises
    ------
    OSError
        If it cannot be started.
    subprocess.TimeoutExpired
        If it was stopped; with what it wrote, if it ended by itself.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=env,
        cwd=cwd,
    )
    with process, _killed_at_last(process):
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            if not ends_within:
                raise
            process.terminate()
            stdout, stderr = process.communicate(timeout=ends_within)
            if process.returncode:
                raise subprocess.TimeoutExpired(command, timeout, stdout, stderr) from None
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


class StreamingCommand:
    """A command whose output is passed on as it arrives.

    Parameters
    ----------
    words
        The words after ``jupyter sky``.
    only
        As of `command`.
    on_output
        Called with each chunk of its output, in the thread of `run`, which waits for the call.
    on_end
        Called in that thread at the end, with the last sentence on stderr or why there is none;
        with an empty string if the command has succeeded and said nothing.
    """

    def __init__(
        self,
        words: Sequence[str],
        only: str | None,
        on_output: Callable[[bytes], object],
        on_end: Callable[[str], object],
    ) -> None:
        self._words = words
        self._only = only
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
        except Exception:
            error = f"`jupyter sky {self._words[0]}` did not work; the server's log says why."
            logging.getLogger(__name__).exception("the output of a command was not understood")
        finally:
            self._on_end(error)

    def kill(self) -> None:
        """End the command; callable from any thread, even before it was started."""
        self._killed = True
        if self._process:
            self._process.kill()

    def _stream(self) -> str:
        """Run the process, and return what `on_end` is told."""
        # In a file: a pipe that nobody reads meanwhile would block the process once it is full.
        with tempfile.TemporaryFile() as stderr:
            process = self._process = subprocess.Popen(
                command(*self._words, only=self._only),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environment(),
            )
            with process, _killed_at_last(process):
                if self._killed:
                    process.kill()
                assert process.stdout
                while data := os.read(process.stdout.fileno(), _CHUNK):
                    self._on_output(data)
                status = process.wait()
            stderr.seek(0)
            return _last_sentence(self._words, status, stderr.read().decode(errors="replace"))


@contextlib.contextmanager
def _killed_at_last(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill a process when it is no longer waited for, and when this process ends."""
    _running.add(process)
    try:
        yield
    finally:
        process.kill()
        _running.discard(process)


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        process.kill()


def command(*words: str, only: str | None = None) -> list[str]:
    """Return the command line of ``jupyter sky`` with some words.

    Parameters
    ----------
    words
        The words.
    only
        The id of the cluster that is named in them: it is not done to another of that name, which
        may have been started since.
    """
    chosen = [registry.ONLY, only] if only else []
    # -P: a `types.py` in the server's working directory must not hide the library's.
    return [sys.executable, "-P", "-m", "jupyter_sky", *chosen, *words]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8:replace"}


def _last_sentence(words: Sequence[str], status: int, stderr: str) -> str:
    """Return the last line that a command wrote to stderr, without the name of the command.

    Without one, and after a signal, which leaves no time to write the reason, it is the status of a
    command that has failed.
    """
    if stderr.strip() and status >= 0:
        return _last_line(stderr)
    return f"`jupyter sky {words[0]}` ended with status {status}" if status else ""


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:1000].removeprefix("jupyter sky: ")
