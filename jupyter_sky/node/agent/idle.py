"""When a node has been left alone for long enough to end: so that nothing keeps costing money."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from jupyter_sky.formatting import format_duration

FIRST_GRACE = 120.0
"""Seconds that a new node waits for its first client."""

_AGAIN_AFTER = 1.0


@dataclass(frozen=True)
class Quiet:
    """For how many seconds a node was not used, and did not work."""

    unused: float
    idle: float


class Idle:
    """Ends a node that nobody uses, or that has nothing to do.

    A node that has nothing to do may be needed all the same, by a run on others: it asks them
    before it ends.

    Parameters
    ----------
    grace
        Seconds without a client and without a run after which the node ends.
    timeout
        Seconds without a run, also while there are clients; ``None`` is for no limit.
    is_busy, has_clients
        Say so of this node.
    ask
        Returns what the other nodes of the cluster say of themselves.
    end
        Called with the reason, in words.
    """

    def __init__(
        self,
        grace: float,
        timeout: float | None,
        is_busy: Callable[[], bool],
        has_clients: Callable[[], bool],
        ask: Callable[[], Awaitable[list[Quiet]]],
        end: Callable[[str], object],
    ) -> None:
        self._grace = grace
        self._limit = timeout
        self._timeout: float | None = None
        self._is_busy = is_busy
        self._has_clients = has_clients
        self._ask = ask
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._used = self._worked = self._loop.time()
        self._was_used = self._was_busy = self._had_client = False
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Count idleness from now on: before, the node was being prepared."""
        self._timeout = self._limit
        self._worked = self._loop.time()
        self.look()

    def look(self) -> None:
        """Take note of how things are; called whenever they may have changed."""
        now = self._loop.time()
        busy, clients = self._is_busy(), self._has_clients()
        if busy or self._was_busy:
            self._worked = now
        if busy or clients or self._was_used:
            self._used = now
        self._was_busy, self._was_used = busy, busy or clients
        self._had_client = self._had_client or clients
        self._arm(self._due(self.quiet))

    @property
    def quiet(self) -> Quiet:
        """How long nobody has needed this node."""
        now = self._loop.time()
        busy = self._is_busy()
        return Quiet(
            0.0 if busy or self._has_clients() else now - self._used,
            0.0 if busy else now - self._worked,
        )

    def _due(self, quiet: Quiet) -> float | None:
        """Return in how many seconds the node ends if nothing happens."""
        if self._is_busy():
            return None
        grace = self._grace if self._had_client else FIRST_GRACE
        due = [] if self._has_clients() else [grace - quiet.unused]
        if self._timeout is not None:
            due.append(self._timeout - quiet.idle)
        return min(due, default=None)

    def _arm(self, due: float | None) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due), self._begin_to_ask)

    def _begin_to_ask(self) -> None:
        self._asking = self._loop.create_task(self._consider())

    async def _consider(self) -> None:
        others = await self._ask()
        mine = self.quiet
        quiet = Quiet(
            min([mine.unused, *(each.unused for each in others)]),
            min([mine.idle, *(each.idle for each in others)]),
        )
        due = self._due(quiet)
        if due is None:
            return
        if due > 0:
            self._arm(max(due, _AGAIN_AFTER))
            return
        if self._timeout is not None and quiet.idle >= self._timeout:
            self._end(f"nothing ran on it for {format_duration(self._timeout)}")
        else:
            self._end(f"no notebook used it for {format_duration(self._grace)}")
