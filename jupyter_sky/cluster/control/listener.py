"""The listener that a controller notifies of events of its cluster, and how these are named."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jupyter_sky.cluster.inventory.owed_runs import OwedRun
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.protocol.events import Event, RankDone, RunBegan

Done = tuple[Connection, RankDone]
"""The end of a rank's part, and the connection over which its node has told of it."""


class ClusterListener:
    """Notified when something happens to a cluster; the scheduler of runs is one.

    This class itself ignores everything, as for a cluster that is only being ended.
    """

    def on_event(self, connection: Connection, event: Event) -> None:
        """Handle an event of a node; the state has changed already."""

    def on_ranks_done(self, done: Sequence[Done]) -> None:
        """Handle that ranks have finished their parts; the state has changed already."""

    def on_notice(self, text: str) -> None:
        """Handle a notice for the user about links and nodes."""

    def on_unseen_run(self, began: RunBegan, owed: OwedRun, untold: Sequence[int]) -> None:
        """Handle a run that another kernel began, before its events arrive.

        Parameters
        ----------
        began
            What the nodes report about it, each for its own ranks.
        owed
            What it was asked for, from this computer's records.
        untold
            Its ranks that were never told of it.
        """

    def on_malformed(self, connection: Connection, what: str) -> None:
        """Handle that a node sent a malformed message."""

    def on_unreached(self, connection: Connection, seconds: float) -> None:
        """Handle, repeatedly, that a node has been unreachable for that many seconds."""

    def on_agent_lost(self, connection: Connection) -> None:
        """Handle that an agent is gone for good, while the cluster is in use."""

    def on_end(self, trouble: SkyError) -> bool:
        """Handle that the cluster is lost or was ended; return whether a run tells the user why."""
        return False


def describe_loss(connection: Connection, what: str = "", ranks: Collection[int] = ()) -> str:
    """Return how an agent was lost, by default as its connection says: ``"the agent of n1 ended"``.

    Parameters
    ----------
    connection
        The connection to it.
    what
        What happened to it.
    ranks
        Ranks that it is named by, before its node if that has a name.
    """
    name = connection.name
    if ranks:
        is_named = connection.machine.nodes[0].name
        name = format_ranks(ranks) + (f" on {name}" if is_named else "")
    return f"the agent of {name} {what or connection.trouble}"
