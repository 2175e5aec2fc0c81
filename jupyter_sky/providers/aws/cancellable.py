"""Blocking work in a thread that can be cancelled between its steps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_sky.providers.aws import retries
from jupyter_sky.providers.aws.retries import Stopped
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.progress import Preparation
from jupyter_sky.transport.tasks import shielded

T = TypeVar("T")


class Cancellable:
    """Work in steps, each of which calls `report` first.

    Parameters
    ----------
    progress
        Called with each step.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stop = threading.Event()
        self._job: asyncio.Future[Any] | None = None

    def report(self, text: str | Preparation) -> None:
        """Report the next step.

        Raises
        ------
        Stopped
            After `stop`.
        """
        if self._stop.is_set():
            raise Stopped("it was stopped.")
        self._progress(text)

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, and wait for it."""

        def until_stopped() -> T:
            with retries.until(self._stop):
                return function()

        job = asyncio.get_running_loop().run_in_executor(None, until_stopped)
        self._job = job
        return await shielded(job)

    async def stop(self) -> None:
        """Let the next `report` raise, and wait until the work has ended."""
        self._stop.set()
        if self._job is not None:
            with contextlib.suppress(Exception):  # who was cancelled does not want its error
                await shielded(self._job)
