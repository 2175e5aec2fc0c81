"""Decides when a node has been idle for long enough to end itself and stop costing money."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard

from jupyter_sky.formatting import format_duration
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_spec import FIRST_GRACE, AgentSpec

SILENT_FOR = 60.0
"""Seconds for which another node is asked again that does not answer, before it counts as gone.

Its machine may have no time for the agent just now, because of the run that goes on there. With a
shorter time-out of the node itself, they are as many as that has.
"""

_AGAIN_AFTER = 1.0  # least seconds to wait while another node is still needed
_LOOK_WITHIN = 1.0  # seconds: a pool may get thousands of answers in one


@dataclass(frozen=True)
class IdleTimes:
    """For how many seconds a node has been idle, in three senses.

    Attributes
    ----------
    unused
        It had no notebook and no run.
    idle
        It had no run, or one that only waited for its notebook.
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


class _Use(NamedTuple):
    """How a node is used: as the attributes of `NodeUse` say."""

    busy: bool
    used: bool
    works: bool


class NodeUse(Protocol):
    """What `IdleTimer` needs from its agent."""

    @property
    def is_busy(self) -> bool:
        """Whether something runs on the node, and does not wait for a notebook that is gone."""

    @property
    def is_working(self) -> bool:
        """Whether something runs on the node, and does not wait for its notebook."""

    @property
    def is_used(self) -> bool:
        """Whether a notebook is connected."""

    def on_idle(self) -> None:
        """Called when nothing is running any more."""

    async def ask_others(self) -> list[IdleTimes | None]:
        """Return the times of the other nodes of the cluster that have not ended.

        One that does not answer is ``None``.
        """

    async def write_back(self) -> str | None:
        """Write back what ranks have written into volumes, which may take minutes.

        Returns
        -------
        str or None
            What could not be written, in words; empty if all was, ``None`` without volumes.
        """

    def end_because(self, reason: str) -> None:
        """End the node; ``reason`` says why, in words."""


class IdleTimer:
    """Ends a node that nobody uses, or on which nothing runs.

    A node on which nothing runs may still be needed for a run on other nodes, so these are asked
    before it ends. A run whose ranks all wait for their notebook, for the next call or because
    nobody reads their values, is nothing that runs: somebody has left it there. Data on its way to
    or from a node is: it may take longer than the time-out, and a run waits for it. A run without a
    notebook may be one that nobody can stop any more, because the network of its machine is broken:
    it is ended as well, after a much longer time.

    Parameters
    ----------
    grace
        Seconds without a client and without a run after which the node ends.
    timeout
        Seconds without a run, or with one that only waits for its notebook, after which it ends,
        even if clients are connected; ``None`` for never.
    unattended
        Seconds without a notebook after which it ends even during a run; ``None`` for never.
    node
        The node's agent.
    first_grace
        Seconds of `grace` before the first client has come.
    """

    def __init__(
        self,
        grace: float,
        timeout: float | None,
        unattended: float | None,
        node: NodeUse,
        first_grace: float = FIRST_GRACE,
    ) -> None:
        self._first_grace, self._next_grace = first_grace, grace
        self._limit = timeout
        self._unattended = unattended
        self._timeout: float | None = None
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._used = self._worked = self._attended = self._loop.time()
        self._before = _Use(busy=False, used=False, works=False)
        self._had_client = False
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._silent_since: float | None = None  # by the loop's clock

    @classmethod
    def of(cls, spec: AgentSpec, node: NodeUse) -> IdleTimer:
        """Return the timer of a node, as its provider wants it."""
        return cls(spec.grace, spec.idle_timeout, spec.unattended, node, spec.first_grace)

    def start_timeout(self) -> None:
        """Start counting time without a run: until now, the node was being prepared."""
        self._timeout = self._limit
        self._worked = self._loop.time()
        self.update()

    def attend(self) -> None:
        """Start counting anew: a user is active on the node without a run, as in a shell."""
        self._used = self._worked = self._attended = self._loop.time()
        self.update()

    def on_work(self) -> None:
        """Note that something was done for a notebook just now, besides what ranks work on.

        A rank has answered, and may wait for its notebook next; data has come or gone.
        """
        self._worked = self._loop.time()
        if self._looking is None:
            self._looking = self._loop.call_later(_LOOK_WITHIN, self._look)

    def _look(self) -> None:
        self._looking = None
        self.update()

    def update(self) -> None:
        """Reset the timer; called whenever the use of the node may have changed."""
        now = self._loop.time()
        before, use = self._before, self._use()
        has_ended = before.busy and not use.busy
        if use.works or before.works or has_ended:
            self._worked = now
        if use.busy or use.used or before.busy or before.used:
            self._used = now
        if use.used or before.used:
            self._attended = now
        if has_ended:
            self._node.on_idle()
        self._before = use
        self._had_client = self._had_client or use.used
        self._arm(self._seconds_left(self._times(use, now), use))

    @property
    def times(self) -> IdleTimes:
        """How long this node has been idle."""
        return self._times(self._use(), self._loop.time())

    @property
    def _grace(self) -> float:
        return self._next_grace if self._had_client else self._first_grace

    def _use(self) -> _Use:
        """Return how the node is used now; asked for once, as it looks at all ranks and clients."""
        return _Use(self._node.is_busy, self._node.is_used, self._node.is_working)

    def _times(self, use: _Use, now: float) -> IdleTimes:
        return IdleTimes(
            0.0 if use.busy or use.used else now - self._used,
            0.0 if use.works else now - self._worked,
            0.0 if use.used else now - self._attended,
        )

    def _seconds_left(self, times: IdleTimes, use: _Use) -> float | None:
        """Return the seconds until the node ends if nothing happens; ``None`` for never."""
        left = []
        if not use.used:
            if not use.busy:
                left.append(self._grace - times.unused)
            elif self._unattended is not None:
                left.append(self._unattended - times.unattended)
        if self._timeout is not None and not use.works:
            left.append(self._timeout - times.idle)
        return min(left, default=None)

    def _arm(self, seconds: float | None) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self._loop.call_later(max(0.0, seconds), self._time_is_up)

    def _time_is_up(self) -> None:
        if self._asking is None or self._asking.done():  # otherwise it sets the timer when it is
            self._asking = self._loop.create_task(self._end_unless_needed())

    async def _end_unless_needed(self) -> None:
        reason = await self._why_unneeded()
        if not reason:
            return
        left = await self._node.write_back()
        if left is not None:  # a run may have begun meanwhile
            reason = await self._why_unneeded()
        if reason:
            self._node.end_because(f"{reason}; {left}" if left else reason)

    async def _why_unneeded(self) -> str:
        """Return why the node can end; if it cannot yet, set the timer, and return nothing."""
        answers = await self._node.ask_others()
        others = [each for each in answers if each is not None]
        mine = self.times
        times = IdleTimes(
            min([mine.unused, *(each.unused for each in others)]),
            min([mine.idle, *(each.idle for each in others)]),
            min([mine.unattended, *(each.unattended for each in others)]),
        )
        left = self._seconds_left(times, self._use())
        if left is not None and left <= 0 and len(others) < len(answers):
            left = self._seconds_left_for_silent_ones()
        else:
            self._silent_since = None
        if left is None:
            return ""
        if left > 0:
            self._arm(max(left, _AGAIN_AFTER))
            return ""
        return self._reason(times)

    def _seconds_left_for_silent_ones(self) -> float:
        """Return the seconds for which other nodes may still be silent, before they count as gone.

        As long as there are some, they are asked again soon.
        """
        now = self._loop.time()
        if self._silent_since is None:
            self._silent_since = now
        limits = (self._timeout, self._unattended, self._grace)
        patience = min([SILENT_FOR, *(limit for limit in limits if limit is not None)])
        return min(self._silent_since + patience - now, _AGAIN_AFTER)

    def _reason(self, times: IdleTimes) -> str:
        busy, limit = self._node.is_busy, self._timeout
        if limit is not None and times.idle >= limit and not self._node.is_working:
            what = "its run only waited for the notebook" if busy else "nothing ran on it"
            return f"{what} for {format_duration(limit)}"
        if busy:
            limit = self._unattended or 0.0
            return f"a run went on for {format_duration(limit)} without a notebook"
        return f"no notebook used it for {format_duration(self._grace)}"
