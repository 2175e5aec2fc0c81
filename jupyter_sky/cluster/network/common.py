"""What the connections to the nodes of a cluster have in common: it is done for all as for one."""

from __future__ import annotations

from dataclasses import dataclass, field

from jupyter_sky.transport.link import Traffic
from jupyter_sky.transport.together.ranks_done import RanksDone
from jupyter_sky.transport.together.readiness import Readiness


@dataclass(frozen=True)
class Common:
    """What the connections of one cluster share.

    Attributes
    ----------
    ends
        Reads what nodes say of ranks that are done, which is much the same of all.
    readiness
        Waits for what they send.
    traffic
        What they were sent.
    """

    ends: RanksDone = field(default_factory=RanksDone)
    readiness: Readiness = field(default_factory=Readiness)
    traffic: Traffic = field(default_factory=Traffic)
