"""What a controller tells of its cluster, and whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.events import Event, RankDone, RunBegan

Done = tuple[Connection, RankDone]
"""The end of a rank's part, and the connection over which its node has told of it."""


class ClusterListener(Protocol):
    """What a controller calls when something happens to its cluster: the scheduler of runs."""

    def on_event(self, connection: Connection, event: Event) -> None:
        """Handle an event of a node; the state has changed already."""

    def on_ranks_done(self, done: Sequence[Done]) -> None:
        """Handle that ranks have come to the end of their parts; the state has changed already."""

    def on_notice(self, text: str) -> None:
        """Handle what the user should know of links and nodes."""

    def on_unseen_run(
        self, began: RunBegan, asked: Mapping[int, Sequence[str]], untold: Sequence[int]
    ) -> None:
        """Handle a run that another kernel began, before its events come.

        Parameters
        ----------
        began
            What the nodes say of it, each of its own ranks.
        asked
            The names that it was asked for, for each rank, as the registry has them.
        untold
            The ranks of it that were never told.
        """

    def on_malformed(self, connection: Connection, what: str) -> None:
        """Handle that a node sent what is none of our messages."""

    def on_unreached(self, connection: Connection, seconds: float) -> None:
        """Handle, again and again, that nobody reaches a node for so many seconds."""

    def on_agent_lost(self, connection: Connection) -> None:
        """Handle that an agent is gone for good, while the cluster is in use."""

    def on_end(self, trouble: SkyError) -> None:
        """Handle that the cluster is lost or was ended."""


class NoRuns(ClusterListener):
    """The listener of a cluster that is only ended: nothing runs on it that could be told."""

    def on_event(self, connection: Connection, event: Event) -> None:
        """Ignore it."""

    def on_ranks_done(self, done: Sequence[Done]) -> None:
        """Ignore it."""

    def on_notice(self, text: str) -> None:
        """Ignore it."""

    def on_unseen_run(
        self, began: RunBegan, asked: Mapping[int, Sequence[str]], untold: Sequence[int]
    ) -> None:
        """Ignore it."""

    def on_malformed(self, connection: Connection, what: str) -> None:
        """Ignore it."""

    def on_unreached(self, connection: Connection, seconds: float) -> None:
        """Ignore it."""

    def on_agent_lost(self, connection: Connection) -> None:
        """Ignore it."""

    def on_end(self, trouble: SkyError) -> None:
        """Ignore it."""
