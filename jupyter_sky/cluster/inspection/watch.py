"""Watches a run for ranks that wait too long for another, and says so without being asked."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.inspection.inspect import inspect_waiting

_ASK_EVERY = 2.0
"""Seconds between two questions to the nodes; a run that is stopped tells the last answer."""

_WORTH_KEEPING = 1.0
"""Seconds that a rank waits in a collective before it is looked where the others are."""


class Watched(Protocol):
    """A run, as far as it is watched.

    Attributes
    ----------
    over
        Set when it is over.
    sent
        Whether it was sent to its ranks; if not, what they wait in is another's.
    """

    over: asyncio.Event
    sent: bool

    @property
    def is_ending(self) -> bool:
        """Whether it was stopped, or a rank has failed: what ranks do then says nothing."""

    def on_where(self, found: Findings | None, is_long: bool) -> None:
        """Handle where its ranks are; ``is_long`` says that the user should know."""


def watch(controller: Controller, run: Watched, hang_after: float) -> asyncio.TimerHandle:
    """Tell a run where its ranks are while some of them wait for others, until it is over.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run
        The run.
    hang_after
        Seconds of waiting after which the user is told.

    Returns
    -------
    asyncio.TimerHandle
        When the nodes are asked first. Most runs are over before, which then cancel it.
    """
    pause = min(_ASK_EVERY, hang_after / 2)

    def begin() -> None:
        controller.spawn(_watch(controller, run, hang_after, pause))

    return asyncio.get_running_loop().call_later(pause, begin)


async def _watch(controller: Controller, run: Watched, hang_after: float, pause: float) -> None:
    while not run.over.is_set() and not run.is_ending:
        found = None
        if run.sent:
            found = await inspect_waiting(controller, min(_WORTH_KEEPING, hang_after / 2))
        if run.sent and not run.over.is_set() and not run.is_ending:
            run.on_where(found, found is not None and found.seconds >= hang_after)
            controller.wake()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(run.over.wait(), pause)
