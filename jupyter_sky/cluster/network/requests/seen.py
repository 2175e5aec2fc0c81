"""Tells agents which of their events have come: those that have not, the next kernel is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link

_AFTER = 0.01
"""Seconds without news after which they are told, unless a request tells it before.

Each word wakes an agent. When ranks end one after the other, those that have are not told each.
"""


class SeenTeller:
    """Tells all agents of a cluster soon, by one timer."""

    def __init__(self) -> None:
        self._news: dict[Seen, None] = {}
        self._count = 0
        self._has_timer = False

    def add(self, seen: Seen) -> None:
        """Tell an agent soon what has come of its events."""
        self._news[seen] = None
        self._count += 1
        if not self._has_timer:
            self._has_timer = True
            asyncio.get_running_loop().call_later(_AFTER, self._tell, self._count)

    def _tell(self, count: int) -> None:
        if count != self._count:
            asyncio.get_running_loop().call_later(_AFTER, self._tell, self._count)
            return
        self._has_timer = False
        news, self._news = self._news, {}
        for seen in news:
            seen.tell()


class Seen:
    """Which events of one agent have come, and what the agent was told of that.

    Parameters
    ----------
    link
        Returns the present link; ``None`` while there is none. On the next one the agent hears it
        first of all.
    teller
        Tells the agent soon.
    """

    def __init__(self, link: Callable[[], Link | None], teller: SeenTeller) -> None:
        self._link = link
        self._teller = teller
        self._last = self._told = 0

    def note(self, number: int, at_once: bool = False) -> None:
        """Note that the events up to a number have come, and tell the agent soon, or now.

        Now where another kernel has begun the run: it is shown once more if this one ends first.
        """
        self._last = number
        if at_once:
            self.tell()
        else:
            self._teller.add(self)

    def news(self) -> Message:
        """Return what a request should tell beside its own."""
        if self._last == self._told:
            return {}
        self._told = self._last
        return {"seen": self._last}

    def tell(self) -> None:
        """Tell the agent now, unless it knows."""
        if self._last != self._told and (link := self._link()):
            self._told = self._last
            link.send({"op": "seen", "n": self._last})
