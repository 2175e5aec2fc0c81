"""One turn for all attempts at a cell: what waits for it counts on what the last of them does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class SharedTurn:
    """A turn that is kept between runs, until `end` is called and none of them goes on.

    It is used in the background loop.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._kept: asyncio.Lock | None = None
        self._is_over = False

    @contextlib.asynccontextmanager
    async def within(self, turn: asyncio.Lock) -> AsyncIterator[None]:
        """Wait for the turn, unless it was kept; that of another cluster is not kept any more."""
        try:
            async with self._one_at_a_time:
                if self._kept is not turn:
                    self._let_go()
                    await turn.acquire()
                    self._kept = turn
                yield
        finally:
            self._settle()

    def end(self) -> None:
        """Keep it no longer than for the run that goes on, if any does."""
        self._is_over = True
        self._settle()

    def _settle(self) -> None:
        if self._is_over and not self._one_at_a_time.locked():
            self._let_go()

    def _let_go(self) -> None:
        if self._kept:
            self._kept.release()
        self._kept = None
