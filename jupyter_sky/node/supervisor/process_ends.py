"""Waiting for what the ends of rank processes bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ProcessEnds:
    """Wakes who waits for the ends of processes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def note(self) -> None:
        """Have conditions looked at again, because a process has ended or will not be there."""
        self._event.set()

    async def until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait until a condition holds, for so many seconds at most; return whether it does."""
        deadline = asyncio.get_running_loop().time() + within
        while not condition():
            self._event.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._event.wait()
            except TimeoutError:
                return False
        return True
