"""Asks the nodes of a cluster what their ranks are doing."""

from __future__ import annotations

import asyncio
from typing import cast

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inspection.findings import Findings, findings
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import LOOK_LINK_WITHIN
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.inspection import InspectAnswer, SeenRank

_ANSWER_WITHIN = 8.0


async def inspect(controller: Controller) -> Findings:
    """Return where the ranks of a cluster are."""
    seen, silent = await look(controller)
    if controller.state.busy_runs or any(each["run"] for each in seen):
        return findings(seen, controller.ranks, silent)
    stuck = [each["rank"] for each in seen if each["answered"] == "nobody"]
    return findings(seen, sorted([*stuck, *silent]), silent, has_run=False)


async def look(controller: Controller) -> tuple[list[SeenRank], dict[int, str]]:
    """Return what ranks are doing, and the nodes of those of which nothing is known."""
    connections = controller.connections
    answers = await asyncio.gather(*(_ask(each, 0.0) for each in connections))
    seen = [rank for answer in answers for rank in answer or ()]
    silent = {
        rank: connection.name
        for connection, answer in zip(connections, answers, strict=True)
        if answer is None
        for rank in connection.ranks
    }
    return seen, silent


async def inspect_waiting(controller: Controller, after: float) -> Findings | None:
    """Return where the ranks are, if one of them has waited in a collective for so many seconds.

    So it does if one has failed: then the others have not gone on.
    """
    found = await asyncio.gather(*(_ask(each, after) for each in controller.connections))
    if not any(found):
        return None
    now = await inspect(controller)
    return now if now.seconds or now.has_failed else None  # it may have come to its end meanwhile


async def _ask(connection: Connection, after: float) -> list[SeenRank] | None:
    """Return what the ranks of a node are doing; ``None`` if it does not say."""
    try:
        answer = await connection.request(
            "inspect", within=_ANSWER_WITHIN, link_within=LOOK_LINK_WITHIN, after=after
        )
    except SkyError:
        return None
    seen = cast(InspectAnswer, answer)["seen"]
    return [each for each in seen if each["rank"] in connection.ranks]
