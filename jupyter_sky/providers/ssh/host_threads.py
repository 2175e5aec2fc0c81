"""Work on hosts, each in a thread of its own, which can be stopped together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import as_sentence
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.machine import submit
from jupyter_sky.providers.ssh.setup.host_progress import HostProgress

_ENDED_WITHIN = 5.0  # seconds
_ABORT_EVERY = 0.05  # seconds

T = TypeVar("T")


class HostThreads:
    """Calls functions for all hosts in parallel.

    Parameters
    ----------
    targets
        The hosts.
    progress
        Shows which of them cannot be used, and stops those that report to it.
    """

    def __init__(self, targets: Sequence[Target], progress: HostProgress) -> None:
        self._targets = targets
        self._progress = progress
        self._running: list[Future[Any]] = []

    async def on_each(self, function: Callable[[int], T]) -> list[T]:
        """Call a function with the number of every host, and return the results.

        Raises
        ------
        SkyError
            With the error of each host that cannot be used.
        """

        def call(number: int) -> T:
            try:
                self._progress.check()
                return function(number)
            except SkyError as error:
                self._progress.fail(str(self._targets[number]), str(error))
                raise

        futures = [submit(call, number) for number in range(len(self._targets))]
        self._running = list(futures)
        done = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
        results, failed = [], []
        for name, each in zip(map(str, self._targets), done, strict=True):
            if isinstance(each, SkyError):
                failed.append(f"{name}: {each}")
            elif isinstance(each, BaseException):
                raise each
            else:
                results.append(each)
        if failed:
            raise SkyError(_sentence(failed, len(self._targets)))
        return results

    async def stop(self) -> None:
        """Hang up on all hosts, and wait until no thread works on them, within limits."""
        self._progress.stop()
        hanging_up = partial(hang_up, self._targets, self._running)
        await asyncio.get_running_loop().run_in_executor(None, hanging_up)


def hang_up(targets: Sequence[Target], jobs: Sequence[Future[Any]]) -> None:
    """Hang up on hosts until no job works on them any more, or for some seconds."""
    until = time.monotonic() + _ENDED_WITHIN
    while True:
        # Repeatedly, since a thread that was between two commands connects again.
        for target in targets:
            pool.get(target).abort()
        if all(job.done() for job in jobs) or time.monotonic() > until:
            return
        time.sleep(_ABORT_EVERY)


def _sentence(failed: Sequence[str], count: int) -> str:
    if len(failed) == 1:
        return as_sentence(failed[0])
    lines = "".join(f"\n  {each.rstrip('.')}" for each in failed)
    return f"{len(failed)} of {count} hosts cannot be used:{lines}"
