"""The first link to an agent, which a busy machine may delay.

A link that breaks later is made again however long that takes, and who attaches to a cluster is
told at once that a node does not answer. A launch took minutes, or money: it is not given up
because the process on the node that leads to the agent took longer to start than it should.
"""

from __future__ import annotations

import asyncio

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.transport.protocol.messages import Welcome

_ATTEMPTS = 3
_PAUSE = 0.5  # seconds


async def open_link(connection: Connection, since: int | None) -> Welcome:
    """Connect to an agent; several times if need be where it was started just now.

    Parameters
    ----------
    since
        Number of the last event that is known: 0 for an agent that was started just now.

    Raises
    ------
    AgentGone
        When the agent is gone.
    OSError
        When no attempt reached it: what was wrong with the last.
    """
    for _ in range(_ATTEMPTS - 1 if since == 0 else 0):
        try:
            return await connection.open(since)
        except AgentGone:
            raise
        except OSError:
            await asyncio.sleep(_PAUSE)
    return await connection.open(since)
