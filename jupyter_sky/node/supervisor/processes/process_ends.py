"""Waiting for conditions that depend on the ends of rank processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ProcessEnds:
    """Wakes tasks that wait for the ends of processes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def note(self) -> None:
        """Check conditions again, because a process has ended or will not be started."""
        self._event.set()

    async def until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait until a condition holds, at most that many seconds; return whether it does."""
        deadline = asyncio.get_running_loop().time() + within
        while not condition():
            self._event.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._event.wait()
            except TimeoutError:
                return False
        return True
