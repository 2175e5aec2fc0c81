"""The context of a cluster's connections: work for many nodes is done once."""

from __future__ import annotations

from dataclasses import dataclass, field

from jupyter_sky.transport.link import Traffic
from jupyter_sky.transport.together.ranks_done import RanksDone
from jupyter_sky.transport.together.readiness import Readiness


@dataclass(frozen=True)
class ConnectionContext:
    """What the connections of one cluster share.

    Attributes
    ----------
    ends
        Decodes the messages that ranks are done, which are nearly the same from all nodes.
    readiness
        Waits for all sockets at once.
    traffic
        Counts what is sent to all nodes.
    """

    ends: RanksDone = field(default_factory=RanksDone)
    readiness: Readiness = field(default_factory=Readiness)
    traffic: Traffic = field(default_factory=Traffic)
