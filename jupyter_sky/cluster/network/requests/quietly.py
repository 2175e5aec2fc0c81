"""Requests about something that goes on without them, and shows how it went."""

from __future__ import annotations

import contextlib
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError


async def request_quietly(connection: Connection, op: str, **fields: Any) -> None:
    """Send a request, and ignore a refusal or a loss of the agent, which are noticed elsewhere.

    It waits for a link however long: a rank that is to stop, or waits for an answer, has to hear of
    it, and the user can stop the run meanwhile.
    """
    with contextlib.suppress(SkyError):
        await connection.request(op, link_within=None, **fields)
