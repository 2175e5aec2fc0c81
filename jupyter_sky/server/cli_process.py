"""Running ``jupyter sky …`` for what no kernel does.

What reaches machines is loaded there, and never into the server. Threads wait for it: the server's
loop cannot, on Windows.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from jupyter_sky.errors import SkyError, UsageError

USAGE = 2
"""The exit status of a command that was not understood, as everywhere in a terminal."""

_LONGEST = 4 * 2**20  # characters of an answer
_PIECE = 64 * 1024
_WITHIN = 3600.0

_threads = ThreadPoolExecutor(8, "sky-terminal")
_following: set[subprocess.Popen[bytes]] = set()


async def run(*words: str) -> str:
    """Run a command and return what it prints.

    Raises
    ------
    SkyError
        With its words, when it fails.
    """
    command = partial(
        subprocess.run,
        _command(words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=_environment(),
        timeout=_WITHIN,
    )
    try:
        done = await asyncio.get_running_loop().run_in_executor(_threads, command)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SkyError(f"`jupyter sky {words[0]}` cannot be run: {error}") from None
    if done.returncode:
        kind = UsageError if done.returncode == USAGE else SkyError
        raise kind(_complaint(done.stderr) or f"it ended with status {done.returncode}")
    return done.stdout[-_LONGEST:]


class Following:
    """A command that goes on, until it ends by itself or is ended.

    Parameters
    ----------
    words
        The command.
    take
        Called in a thread of its own with each piece that it prints, and waited for.
    over
        Called in that thread at the end, with the sentence of an error, or with nothing.
    """

    def __init__(
        self, words: list[str], take: Callable[[bytes], object], over: Callable[[str], object]
    ) -> None:
        self._words = words
        self._take = take
        self._over = over
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def follow(self) -> None:
        """Run it to its end, in the thread that calls this."""
        said = ""
        try:
            said = self._run()
        except OSError as error:
            said = f"`jupyter sky {self._words[0]}` cannot be run: {error}"
        finally:
            self._over(said)

    def end(self) -> None:
        """End it; from any thread, also before it has begun."""
        self._ended = True
        if self._process:
            self._process.kill()

    def _run(self) -> str:
        """Run it, and return the sentence of an error, or nothing."""
        process = self._process = subprocess.Popen(
            _command(self._words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
        )
        _following.add(process)
        try:
            if self._ended:
                process.kill()
            assert process.stdout and process.stderr
            while data := os.read(process.stdout.fileno(), _PIECE):
                self._take(data)
            return _complaint(process.stderr.read().decode(errors="replace"))
        finally:
            process.kill()
            process.communicate()
            _following.discard(process)


@atexit.register
def _end_all() -> None:
    for process in list(_following):
        process.kill()


def _command(words: list[str] | tuple[str, ...]) -> list[str]:
    # Not from the folder that the server stands in: a `types.py` there is not the library's.
    return [sys.executable, "-P", "-m", "jupyter_sky", *words]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8:replace"}


def _complaint(said: str) -> str:
    """Return the sentence with which a command has ended."""
    lines = said.strip().splitlines()
    return lines[-1][:1000].removeprefix("jupyter sky: ") if lines else ""
