"""Tells an agent which of its events have come: those that have not, the next kernel is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link

_WITHIN = 0.01
"""Seconds in which it is told, unless a request does that before: the agent wakes for each word."""


class Seen:
    """Which events of one agent have come, and what the agent was told of that.

    Parameters
    ----------
    link
        Returns the present link; ``None`` while there is none. On the next one the agent hears it
        first of all.
    """

    def __init__(self, link: Callable[[], Link | None]) -> None:
        self._link = link
        self._last = self._told = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, number: int) -> None:
        """Note that the events up to a number have come, and tell the agent soon."""
        self._last = number
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WITHIN, self.tell)

    def news(self) -> Message:
        """Return what a request should tell beside its own."""
        if self._last == self._told:
            return {}
        self._told = self._last
        return {"seen": self._last}

    def tell(self) -> None:
        """Tell the agent now, unless it knows."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._last != self._told and (link := self._link()):
            self._told = self._last
            link.send({"op": "seen", "n": self._last})
