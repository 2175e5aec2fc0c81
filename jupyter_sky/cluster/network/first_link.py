"""The first link to an agent, which a busy machine may delay.

A link that breaks later is made again however long that takes, and a user who attaches to a cluster
is told at once that a node does not answer. But a launch has cost minutes, or money: it is not
given up because the process on the node that leads to the agent is slow to start.
"""

from __future__ import annotations

import asyncio

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.transport.protocol.messages import Welcome

_ATTEMPTS = 3
_PAUSE = 0.5  # seconds


async def open_link(connection: Connection, since: int | None) -> Welcome:
    """Connect to an agent; try several times if it was started just now.

    Parameters
    ----------
    since
        Number of the last event that is known: 0 for an agent that was started just now.

    Raises
    ------
    AgentGone
        When the agent is gone.
    OSError
        When no attempt reached it; this is the error of the last one.
    """
    for _ in range(_ATTEMPTS - 1 if since == 0 else 0):
        try:
            return await connection.open(since)
        except AgentGone:
            raise
        except OSError:
            await asyncio.sleep(_PAUSE)
    return await connection.open(since)
