"""Tells an agent which of its events have come: those that have not, the next kernel is shown."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link


class Seen:
    """Which events of an agent have come, and what the agent was told of that.

    It is told with the next request or heartbeat: a word for it alone would wake each of a thousand
    agents once more for each cell. If this kernel is killed before that, within a second, the next
    one is shown the end of the run once more.

    Parameters
    ----------
    link
        Returns the present link; ``None`` while there is none. On the next one the agent hears it
        first of all.
    """

    def __init__(self, link: Callable[[], Link | None]) -> None:
        self._link = link
        self._last = self._told = 0

    def note(self, number: int, at_once: bool = False) -> None:
        """Note that the events up to a number have come, and tell the agent now if that is asked.

        It is where another kernel has begun the run, which shows it a second time already.
        """
        self._last = number
        if at_once:
            self.tell()

    def news(self) -> Message:
        """Return what a request should tell beside its own."""
        if self._last == self._told:
            return {}
        self._told = self._last
        return {"seen": self._last}

    def heartbeat(self) -> Message:
        """Return what a heartbeat should tell."""
        return {"op": "seen", "n": self._told} if self.news() else {}

    def tell(self) -> None:
        """Tell the agent now, unless it knows."""
        if (link := self._link()) and (told := self.heartbeat()):
            link.send(told)
