"""A place in the journal, from which a client is sent the events that follow."""

from __future__ import annotations

from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.transport.frames import encode
from jupyter_sky.transport.protocol.events import Lost

_NOTHING = Lost(shown=0, others=0)


class Cursor:
    """Reads the events of a journal one after the other.

    Consecutive events that were not kept are replaced by a single one that says so.

    Parameters
    ----------
    journal
        The journal.
    number
        Number of the first event to read.

    Attributes
    ----------
    next
        Number of the event to read next.
    """

    def __init__(self, journal: Journal, number: int) -> None:
        self.next = number
        self._journal = journal
        self._lost = _NOTHING

    @property
    def has_lost(self) -> bool:
        """Whether it is to be said first that events before the next one are lost."""
        return self._lost is not _NOTHING

    @property
    def told(self) -> int:
        """Number of the last event that was read, or of which it was said that it is lost."""
        return self.next - 1 - self._lost.shown - self._lost.others

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self.next > self._journal.last and not self.has_lost

    def read(self) -> bytes | None:
        """Return the next event as a frame; ``None`` if it takes further calls to find one.

        There has to be one.
        """
        if self.next > self._journal.last:
            return self._tell_lost()
        found, following = self._journal.read(self.next)
        if isinstance(found, Lost):
            self.next = following
            shown, others = self._lost.shown + found.shown, self._lost.others + found.others
            self._lost = Lost(shown, others)
            return None
        if self.has_lost:
            return self._tell_lost()
        self.next = following
        return found

    def _tell_lost(self) -> bytes:
        lost, self._lost = self._lost, _NOTHING
        return encode({**lost.message(), "n": self.next - 1})
