"""Shutdown of agents, as far as they are reached."""

from __future__ import annotations

import asyncio
import contextlib

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Machine

END_WITHIN = 10.0
"""Seconds for an agent to end its node: ranks, fork server, files."""


async def end(connection: Connection) -> list[str]:
    """End an agent with everything on its node, and close the connection.

    Returns
    -------
    list of str
        Its nodes, if they could not be reached; what is left there ends by itself.
    """
    if connection.is_up:
        with contextlib.suppress(SkyError):
            await connection.request("end", within=END_WITHIN)
    connection.close()
    return await remove(connection.machine)


async def remove(machine: Machine) -> list[str]:
    """Remove what is left of an agent that does not answer; see `end`."""
    try:
        async with asyncio.timeout(END_WITHIN):
            await machine.remove()
    except (OSError, TimeoutError):
        return [node.host for node in machine.nodes]
    return []
