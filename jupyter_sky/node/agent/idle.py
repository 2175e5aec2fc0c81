"""Decides when a node has been idle for long enough to end itself and stop costing money."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from jupyter_sky.formatting import format_duration
from jupyter_sky.transport.frames import Message

FIRST_GRACE = 120.0
"""Seconds that a new node waits for its first client."""

_AGAIN_AFTER = 1.0  # least seconds to wait while another node is still needed


@dataclass(frozen=True)
class IdleTimes:
    """For how many seconds a node has been idle, in three senses.

    Attributes
    ----------
    unused
        It had no notebook and no run.
    idle
        It had no run.
    unattended
        It had no notebook.
    """

    unused: float
    idle: float
    unattended: float

    @classmethod
    def from_message(cls, message: Message) -> IdleTimes | None:
        """Return the times in an agent's message, perhaps of a newer version, or ``None``."""
        unused, idle, unattended = map(message.get, ("unused", "idle", "unattended"))
        if not (_is_time(unused) and _is_time(idle) and _is_time(unattended)):
            return None
        return cls(float(unused), float(idle), float(unattended))


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 <= value < math.inf


class NodeUse(Protocol):
    """What `IdleTimer` needs from its agent."""

    @property
    def is_busy(self) -> bool:
        """Whether something runs on the node."""

    @property
    def is_used(self) -> bool:
        """Whether a notebook is connected."""

    def on_idle(self) -> None:
        """Called when nothing is running any more."""

    async def ask_others(self) -> list[IdleTimes]:
        """Return the times of the other nodes of the cluster, as far as they answer."""

    def end_because(self, reason: str) -> None:
        """End the node; ``reason`` says why, in words."""


class IdleTimer:
    """Ends a node that nobody uses, or on which nothing runs.

    A node on which nothing runs may still be needed for a run on other nodes, so these are asked
    before it ends. A run without a notebook may be one that nobody can stop any more, because the
    network of its machine is broken: it is ended as well, after a much longer time.

    Parameters
    ----------
    grace
        Seconds without a client and without a run after which the node ends.
    timeout
        Seconds without a run after which it ends, even if clients are connected; ``None`` for
        never.
    unattended
        Seconds without a notebook after which it ends even during a run; ``None`` for never.
    node
        The node's agent.
    """

    def __init__(
        self, grace: float, timeout: float | None, unattended: float | None, node: NodeUse
    ) -> None:
        self._grace = grace
        self._limit = timeout
        self._unattended = unattended
        self._timeout: float | None = None
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._used = self._worked = self._attended = self._loop.time()
        self._was_used = self._was_busy = self._was_attended = self._had_client = False
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def start_timeout(self) -> None:
        """Start counting time without a run: until now, the node was being prepared."""
        self._timeout = self._limit
        self._worked = self._loop.time()
        self.update()

    def attend(self) -> None:
        """Start counting anew: a user is active on the node without a run, as in a shell."""
        self._used = self._worked = self._attended = self._loop.time()
        self.update()

    def update(self) -> None:
        """Reset the timer; called whenever the use of the node may have changed."""
        now = self._loop.time()
        busy, used = self._node.is_busy, self._node.is_used
        if busy or self._was_busy:
            self._worked = now
        if busy or used or self._was_used:
            self._used = now
        if used or self._was_attended:
            self._attended = now
        if self._was_busy and not busy:
            self._node.on_idle()
        self._was_busy, self._was_used, self._was_attended = busy, busy or used, used
        self._had_client = self._had_client or used
        self._arm(self._seconds_left(self._times(busy, used), busy, used))

    @property
    def times(self) -> IdleTimes:
        """How long this node has been idle."""
        return self._times(self._node.is_busy, self._node.is_used)

    def _times(self, busy: bool, used: bool) -> IdleTimes:
        now = self._loop.time()
        return IdleTimes(
            0.0 if busy or used else now - self._used,
            0.0 if busy else now - self._worked,
            0.0 if used else now - self._attended,
        )

    def _seconds_left(self, times: IdleTimes, busy: bool, used: bool) -> float | None:
        """Return the seconds until the node ends if nothing happens; ``None`` for never."""
        if busy:
            if self._unattended is None or used:
                return None
            return self._unattended - times.unattended
        grace = self._grace if self._had_client else FIRST_GRACE
        left = [] if used else [grace - times.unused]
        if self._timeout is not None:
            left.append(self._timeout - times.idle)
        return min(left, default=None)

    def _arm(self, seconds: float | None) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self._loop.call_later(max(0.0, seconds), self._time_is_up)

    def _time_is_up(self) -> None:
        self._asking = self._loop.create_task(self._end_unless_needed())

    async def _end_unless_needed(self) -> None:
        others = await self._node.ask_others()
        mine = self.times
        times = IdleTimes(
            min([mine.unused, *(each.unused for each in others)]),
            min([mine.idle, *(each.idle for each in others)]),
            min([mine.unattended, *(each.unattended for each in others)]),
        )
        busy = self._node.is_busy
        left = self._seconds_left(times, busy, self._node.is_used)
        if left is None:
            return
        if left > 0:
            self._arm(max(left, _AGAIN_AFTER))
            return
        if busy:
            limit = format_duration(self._unattended or 0.0)
            self._node.end_because(f"a run went on for {limit} without a notebook")
        elif self._timeout is not None and times.idle >= self._timeout:
            self._node.end_because(f"nothing ran on it for {format_duration(self._timeout)}")
        else:
            self._node.end_because(f"no notebook used it for {format_duration(self._grace)}")
