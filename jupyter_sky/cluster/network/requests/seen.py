"""Tells an agent which of its events this kernel has received; the next one is shown the others."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link


class Seen:
    """The number of the last event that has come, and of the last that the agent was told of.

    The agent is told with the next request or heartbeat: a message of its own would wake each of a
    thousand agents once more for each cell. If this kernel is killed before that, within a second,
    the next one is shown the end of the run once more.

    Parameters
    ----------
    link
        Returns the present link; ``None`` while there is none: the greeting over the next link says
        which event came last.
    """

    def __init__(self, link: Callable[[], Link | None]) -> None:
        self._link = link
        self._last = self._told = 0

    def note(self, number: int, at_once: bool = False) -> None:
        """Record that the events up to a number have come.

        With ``at_once`` the agent is told now: a run that another kernel began is shown here for
        the second time, and should not be for a third.
        """
        self._last = number
        if at_once:
            self.tell()

    def news(self) -> Message:
        """Return the fields that tell the agent, for the next request; empty if it knows."""
        if self._last == self._told:
            return {}
        self._told = self._last
        return {"seen": self._last}

    def heartbeat(self) -> Message:
        """Return the heartbeat's message that tells the agent; empty if it knows."""
        return {"op": "seen", "n": self._told} if self.news() else {}

    def tell(self) -> None:
        """Tell the agent now, unless it knows."""
        if (link := self._link()) and (told := self.heartbeat()):
            link.send(told)
