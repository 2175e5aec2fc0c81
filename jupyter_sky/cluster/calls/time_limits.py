"""The time limits of calls: when they begin to count, and what becomes of calls that go on.

A rank stops a call whose time is over by itself. What is here is for calls that do not react, like
one that waits in C code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jupyter_sky.cluster.calls.assignments import Assignment, Assignments
from jupyter_sky.cluster.calls.batch import BatchedCall
from jupyter_sky.transport.protocol.error_report import ErrorReport, report
from jupyter_sky.transport.protocol.messages import Serving

_GIVE_UP_AFTER = 1.0
"""Seconds from a call's time-out to its answer, if its rank goes on with it; or from its
cancellation until it is overdue."""

_KILL_AFTER = 10.0
"""Seconds from a call's time-out, or its cancellation, until a rank that ignores it is killed."""


class TimeLimits:
    """The time limits of the calls of a run.

    Parameters
    ----------
    assigned
        The calls that ranks have.
    serving
        How each rank carries them out. One that has a single call at a time is killed if the call
        ignores its end; others would lose further calls with it.
    fail
        Answers a call, which a rank has, with an error.
    kill
        Kills ranks.
    on_overdue
        Called when a call should have ended: if there are no others, its run can be stopped, which
        also ends a call that waits in a collective, and keeps the rank.
    """

    def __init__(
        self,
        assigned: Assignments,
        serving: Serving,
        fail: Callable[[BatchedCall, int, ErrorReport], None],
        kill: Callable[[Sequence[int]], None],
        on_overdue: Callable[[], None],
    ) -> None:
        self._assigned = assigned
        self._at_once = serving["concurrency"]
        self._fail = fail
        self._kill = kill
        self._on_overdue = on_overdue

    def update(self, rank: int) -> None:
        """Let the time of calls count that a rank begins, since others have arrived or ended.

        A rank begins its calls in the order in which it was given them. Until then, a call that was
        sent in advance has all of its time left, and so has one whose arguments are on their way.
        """
        for each in self._assigned.oldest(rank, self._at_once):
            if each.has_begun or not each.is_there:
                continue
            each.has_begun = True
            if each.is_settled:
                self.stopped(each)
            elif (timeout := each.call.packed.timeout) is not None:
                self._later(timeout + _GIVE_UP_AFTER, self._give_up, each)
                self._later(timeout + _KILL_AFTER, self._end, each)

    def arrived(self, each: Assignment) -> bool:
        """Note that the arguments of a call are there; return whether its rank still has it."""
        each.is_there = True
        self.update(each.rank)
        return each in self._assigned

    def stopped(self, each: Assignment) -> None:
        """Limit the time for which a call may go on that is not wanted any more."""
        if each.has_begun or not each.is_there:
            self._later(_GIVE_UP_AFTER, self._give_up, each)
        if each.has_begun:
            self._later(_KILL_AFTER, self._end, each)

    def _later(self, seconds: float, what: Callable[[Assignment], None], each: Assignment) -> None:
        each.timers.append(asyncio.get_running_loop().call_later(seconds, what, each))

    def _give_up(self, each: Assignment) -> None:
        """Wait no longer for a call: answer it with a `TimeoutError`, unless it was cancelled."""
        if each not in self._assigned:
            return
        if not each.is_settled:
            each.is_settled = True
            text = f"it took longer than its {each.call.packed.timeout:g} s"
            self._fail(each.call, each.rank, report(TimeoutError, text))
        each.is_overdue = True
        self._on_overdue()

    def _end(self, each: Assignment) -> None:
        if self._at_once == 1 and each in self._assigned:
            self._give_up(each)
            self._kill([each.rank])
