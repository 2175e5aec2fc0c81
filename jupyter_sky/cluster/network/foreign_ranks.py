"""What a node says of ranks that are not its own: it is dropped, and the user is told once.

A node speaks for its own ranks alone. One that was taken over could otherwise end the run of
another node, or give a value in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.protocol.events import Event, Leaving


def foreign_ranks(event: Event, own: Collection[int]) -> frozenset[int]:
    """Return the ranks that an event of a node is about, and that are not its own.

    `RunBegan` is about a run, whose ranks may be anywhere: who reads it takes each node's word for
    its own ranks.
    """
    if isinstance(event, Leaving):
        return frozenset(event.ranks).difference(own)
    rank = getattr(event, "rank", None)
    return frozenset() if rank is None or rank in own else frozenset([rank])


class ForeignRanks:
    """Tells the user which nodes spoke for ranks of others.

    Parameters
    ----------
    notify
        Called with what the user should know.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._notes: dict[str, str] = {}

    @property
    def note(self) -> str:
        """Which nodes did so, in words; empty if none did."""
        return "; ".join(self._notes.values())

    def report(self, name: str, ranks: Iterable[int]) -> None:
        """Tell that a node spoke for these ranks, the first time that it does."""
        if name not in self._notes:
            self._notes[name] = (
                f"{name} spoke for {format_ranks(sorted(ranks))}, which it does not have: that was "
                "dropped, and somebody may have taken the node over"
            )
            self._notify(self._notes[name])
