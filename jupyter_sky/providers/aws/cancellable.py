"""Work that blocks, in a thread, and that ends at its next word when nobody wants it any more."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.progress import Preparation

T = TypeVar("T")


class Stopped(SkyError):
    """The work was stopped by the person."""


class Cancellable:
    """Work in steps.

    Parameters
    ----------
    progress
        Told what is going on.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stop = threading.Event()
        self._job: asyncio.Future[Any] | None = None

    def say(self, text: str | Preparation) -> None:
        """Say what the next step is; raises when there should be none."""
        if self._stop.is_set():
            raise Stopped("it was stopped.")
        self._progress(text)

    async def do(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, and wait for it."""
        job = asyncio.get_running_loop().run_in_executor(None, function)
        self._job = job
        return await asyncio.shield(job)

    async def stop(self) -> None:
        """Have no further step, and wait until the present one is over."""
        self._stop.set()
        if self._job is not None:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._job)
