"""Shutdown of agents: those that are reached now, and those that are told later.

An agent that cannot be reached from here may be reached by the others, which pass the word on. What
nobody reaches is owed: the registry keeps it, and it is done when the machine answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import owed_ends
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.providers.base import Machine

END_WITHIN = 10.0
"""Seconds for an agent to end its node: ranks, fork server, files."""

SIGN_WITHIN = 1.0
"""Seconds for a sign of life, before others are asked to pass the word on."""

_PASS_ON_WITHIN = 8.0
_MESSENGERS = 3  # agents that pass the word on


async def end(
    controller: Controller, leaving: Sequence[Connection], machines: Iterable[Machine] = ()
) -> list[str]:
    """End agents with everything on their nodes, and close the connections to them.

    Parameters
    ----------
    controller
        The cluster.
    leaving
        The connections to the agents.
    machines
        Machines of others, to which there is no connection.

    Returns
    -------
    list of str
        The nodes that could not be told, which is owed to them from now on.
    """
    told = await _tell_through_others(controller, leaving)
    await asyncio.gather(*(_end(each) for each in leaving if each not in told))
    for connection in leaving:
        connection.close()
    left = [each.machine for each in leaving if each not in told]
    return await owed_ends.remove_machines(
        controller.id, controller.spec.name, controller.provider, [*left, *machines]
    )


async def _end(connection: Connection) -> None:
    if connection.is_up:
        with contextlib.suppress(SkyError):
            await connection.request("end", within=END_WITHIN, link_within=0.0)


async def _tell_through_others(
    controller: Controller, leaving: Sequence[Connection]
) -> list[Connection]:
    """Have agents that answer tell those that do not; return whom they have told."""
    every = list(dict.fromkeys([*controller.connections, *leaving]))
    signs = await asyncio.gather(*map(_gives_sign, every))
    answering = [each for each, sign in zip(every, signs, strict=True) if sign]
    silent = [each for each in leaving if each not in answering and not each.is_over]
    if not silent:
        return []
    peers = [each.machine.nodes[0].peer() for each in silent]
    said = await asyncio.gather(
        *(
            each.request("end_peers", peers=peers, within=_PASS_ON_WITHIN)
            for each in answering[:_MESSENGERS]
        ),
        return_exceptions=True,
    )
    failed = [each["failed"] for each in said if isinstance(each, dict)]
    return [
        each
        for each, peer in zip(silent, peers, strict=True)
        if any(peer["node"] not in nodes for nodes in failed)
    ]


async def _gives_sign(connection: Connection) -> bool:
    """Return whether an agent answers at once, whatever it says."""
    if not connection.is_up:
        return False
    try:
        await connection.request("end_peers", peers=[], within=SIGN_WITHIN, link_within=0.0)
    except (NoConnection, ClusterLost):
        return False
    except SkyError:
        pass  # one of another version
    return True
