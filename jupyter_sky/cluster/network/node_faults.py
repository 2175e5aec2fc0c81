"""What a node should not have sent: it is dropped, and the user is told once.

A node speaks for its own ranks alone: one that was taken over could otherwise end the run of
another node, or give a value in its name. And it sends messages that can be read.
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


class NodeFaults:
    """Tells the user which nodes sent what they should not have.

    Parameters
    ----------
    notify
        Called with what the user should know.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._notes: dict[tuple[str, str], str] = {}

    @property
    def note(self) -> str:
        """Which nodes did so, and what it was, in words; empty if none did."""
        return "; ".join(self._notes.values())

    def report_foreign(self, name: str, ranks: Iterable[int]) -> None:
        """Tell that a node spoke for these ranks of others, the first time that it does."""
        self._report(
            name,
            "foreign",
            f"{name} spoke for {format_ranks(sorted(ranks))}, which it does not have: that was "
            "dropped, and somebody may have taken the node over",
        )

    def report_malformed(self, name: str, what: str) -> None:
        """Tell that a node sent what cannot be read, the first time that it does."""
        self._report(
            name,
            "malformed",
            f"{name} sent what cannot be read ({what}): that was dropped, and somebody may have "
            "taken the node over, or its jupyter_sky is damaged",
        )

    def _report(self, name: str, kind: str, text: str) -> None:
        if (name, kind) not in self._notes:
            self._notes[name, kind] = text
            self._notify(text)
