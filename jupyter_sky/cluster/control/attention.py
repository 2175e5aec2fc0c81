"""Nodes are kept from their idle time-out while something goes on for which no run is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.transport.tasks import cancel_all

_AGAIN_AFTER = 0.25
"""The share of the idle time-out after which nodes are told again that they are needed."""


@contextlib.asynccontextmanager
async def kept_up(controller: Controller) -> AsyncIterator[None]:
    """Let no node of a cluster end itself meanwhile because nothing runs there."""
    attending = asyncio.ensure_future(_attend(controller))
    try:
        yield
    finally:
        await cancel_all([attending])


async def _attend(controller: Controller) -> None:
    while (timeout := controller.spec.idle_timeout) is not None:
        asked = [each.request("attend", link_within=0.0) for each in controller.connections]
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(timeout * _AGAIN_AFTER)
