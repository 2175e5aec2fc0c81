"""Messages that a node should not have sent: they are dropped, and the user is told once.

A node may speak only for its own ranks: one that was taken over could otherwise end the run of
another node, or send a value in its name. And its messages have to be well-formed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.protocol.events import Event, Leaving


def foreign_ranks(event: Event, own: Collection[int]) -> frozenset[int]:
    """Return the ranks that an event of a node is about although they are not the node's own.

    `RunBegan` lists ranks of all nodes, and is allowed to: its readers believe each node about its
    own ranks only.
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
        """Which nodes sent what, in words; empty if none did."""
        return "; ".join(self._notes.values())

    def report_foreign(self, name: str, ranks: Iterable[int]) -> None:
        """Report that a node spoke for ranks of other nodes, the first time that it does."""
        self._report(
            name,
            "foreign",
            f"{name} spoke for {format_ranks(sorted(ranks))}, which it does not have: that was "
            "dropped, and somebody may have taken the node over",
        )

    def report_malformed(self, name: str, what: str) -> None:
        """Report that a node sent a malformed message, the first time that it does."""
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
