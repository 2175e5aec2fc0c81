"""The first link to an agent, which a busy machine may delay.

A link that breaks later is made again however long that takes, and a user who attaches to a cluster
is told at once that a node does not answer. But a launch has cost minutes, or money: it is not
given up because the process on the node that leads to the agent is slow to start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import as_sentence
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.transport.protocol.messages import Welcome

_ATTEMPTS = 3
_PAUSE = 0.5  # seconds


async def open_links(
    connections: Sequence[Connection], since: int | None
) -> tuple[dict[Connection, Welcome], dict[Connection, AgentGone]]:
    """Connect to agents, as `open_link` does; return their welcome messages, and which are gone.

    Raises
    ------
    SkyError
        When one that was started just now is gone, or no attempt reached it.
    OSError
        When another one cannot be reached.
    """
    links = (open_link(each, since) for each in connections)
    welcomes, gone = {}, {}
    for each, result in zip(
        connections, await asyncio.gather(*links, return_exceptions=True), strict=True
    ):
        if isinstance(result, AgentGone):
            gone[each] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            welcomes[each] = result
    return welcomes, gone


async def open_link(connection: Connection, since: int | None) -> Welcome:
    """Connect to an agent; try several times if it was started just now.

    Parameters
    ----------
    since
        Number of the last event that is known: 0 for an agent that was started just now.

    Raises
    ------
    SkyError
        When an agent that was started just now is gone, or no attempt reached it.
    AgentGone
        When another one is gone.
    OSError
        When another one cannot be reached.
    """
    if since != 0:
        return await connection.open(since)
    for attempt in count(1):
        try:
            return await connection.open(since)
        except AgentGone as gone:
            # As where the job of a node was cancelled at that moment.
            raise SkyError(
                as_sentence(f"{connection.name} was lost as it started: {gone}")
            ) from None
        except OSError as error:
            if attempt == _ATTEMPTS:
                text = f"{connection.name} has started, and cannot be reached: {error}"
                raise SkyError(as_sentence(text)) from None
            await asyncio.sleep(_PAUSE)
    raise AssertionError("unreachable")
