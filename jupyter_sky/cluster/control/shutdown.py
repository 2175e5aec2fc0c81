"""Shutdown of agents: those that can be reached now, and those that are told later.

An agent that cannot be reached from here may be reachable by the others, which pass the request on.
If nobody can reach it, the end is owed: the registry remembers it, and it is done when the machine
answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import owed_ends
from jupyter_sky.cluster.inventory.owed_ends import Origin
from jupyter_sky.cluster.inventory.registry import RegistryError
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.formatting import format_duration
from jupyter_sky.providers.base import Machine, Progress
from jupyter_sky.providers.progress import say
from jupyter_sky.transport.tasks import blocking

END_WITHIN = 10.0
"""Seconds for an agent to end its node: ranks, fork server, files."""

SIGN_WITHIN = 1.0
"""Seconds for a sign of life, before others are asked to pass the word on."""

_PASS_ON_WITHIN = 8.0
_MESSENGERS = 3  # most agents that pass the request on


async def end(
    controller: Controller,
    leaving: Sequence[Connection],
    machines: Iterable[Machine] = (),
    progress: Progress = lambda text: None,
    whole: bool = False,
) -> list[str]:
    """End agents with everything on their nodes, and close the connections to them.

    Parameters
    ----------
    controller
        The cluster.
    leaving
        The connections to the agents.
    machines
        Machines of other agents, to which there is no connection.
    progress
        Called with a description of the wait if a node does not answer.
    whole
        Whether these are all agents; other notebooks and programs are then told that the cluster
        ends.

    Returns
    -------
    list of str
        The nodes that could not be told; they will be told when they answer again. Of a whole
        cluster, these are also nodes that had left it before.
    """
    told = await _tell_through_others(controller, leaving, progress)
    ended = await asyncio.gather(*(_end(each, whole) for each in leaving))
    for connection in leaving:
        connection.close()
    # An agent that was told by others is out of reach from here, and ends by itself.
    left = [
        each.machine
        for each, has_ended in zip(leaving, ended, strict=True)
        if has_ended or each not in told
    ]
    untold = await owed_ends.remove_machines(origin(controller), [*left, *machines])
    if whole:  # of a cluster that is gone, nobody else says where an earlier end is owed
        with contextlib.suppress(RegistryError):
            untold += await blocking(owed_ends.hosts_of, controller.id)
    return list(dict.fromkeys(untold))


def origin(controller: Controller) -> Origin:
    """Return the record of a cluster for machines that could not be told."""
    spec = controller.spec
    return Origin(controller.id, spec.name, controller.provider, spec.unattended)


async def _end(connection: Connection, whole: bool) -> bool:
    """Let an agent end its node; return whether it has."""
    if connection.is_up:
        with contextlib.suppress(SkyError):
            await connection.request("end", whole=whole, within=END_WITHIN, link_within=0.0)
            return True
    return False


async def _tell_through_others(
    controller: Controller, leaving: Sequence[Connection], progress: Progress
) -> list[Connection]:
    """Let agents that answer tell those that do not; return which ones were told."""
    every = list(dict.fromkeys([*controller.connections, *leaving]))
    signs = await asyncio.gather(*map(_gives_sign, every))
    answering = [each for each, sign in zip(every, signs, strict=True) if sign]
    silent = [each for each in leaving if each not in answering and not each.is_over]
    if not silent:
        return []
    say(progress, _waits_for(silent))
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


def _waits_for(silent: Sequence[Connection]) -> str:
    names = ", ".join(each.name for each in silent)
    do = "do" if len(silent) > 1 else "does"
    most = format_duration(SIGN_WITHIN + _PASS_ON_WITHIN + owed_ends.REMOVE_WITHIN)
    return f"waiting for {names}, which {do} not answer, {most} at most"


async def _gives_sign(connection: Connection) -> bool:
    """Return whether an agent answers at once, with any answer.

    A link that has just broken is waited for: it may turn out that the agent has ended.
    """
    if not connection.is_up and connection.broken_since is None:
        return False
    try:
        await connection.request("end_peers", peers=[], within=SIGN_WITHIN, link_within=SIGN_WITHIN)
    except (NoConnection, ClusterLost):
        return False
    except SkyError:
        pass  # one of another version
    return True
