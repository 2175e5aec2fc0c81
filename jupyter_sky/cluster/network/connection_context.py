"""The context of a cluster's connections: work for many nodes is done once."""

from __future__ import annotations

import uuid
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
    client
        What other notebooks know this one by.
    """

    ends: RanksDone = field(default_factory=RanksDone)
    readiness: Readiness = field(default_factory=Readiness)
    traffic: Traffic = field(default_factory=Traffic)
    client: str = field(default_factory=lambda: uuid.uuid4().hex)
