"""Broadcast of blobs: each leaves this process once, however many nodes need it.

One agent gets it from here and relays it to the others while it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.transfer import HostTransfer, Transfer
from jupyter_sky.cluster.network.upload import SMALL
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.base import Node
from jupyter_sky.transport.tasks import cancel_all

DIRECT = 1024 * 1024
"""Bytes, summed over all nodes, up to which a blob is sent to each from here: a relay is slower."""

_AT_ONCE = 4  # blobs
_ASK_EVERY = 0.5  # seconds

_Hosts = Mapping[Connection, HostTransfer]


async def send(
    blobs: Mapping[str, memoryview],
    connections: Sequence[Connection],
    transfer: Transfer | None = None,
) -> None:
    """Send blobs to every node that lacks them, and return when all have them.

    What goes to a node directly may still be on the way, but arrives before any later request.

    Parameters
    ----------
    blobs
        The blobs by their digests.
    connections
        The connections to the nodes' agents.
    transfer
        Counts what has arrived where.
    """
    transfer = transfer or Transfer()
    hosts = {
        each: transfer.add_host(
            each.name,
            [(key, data.nbytes) for key, data in blobs.items() if not each.uploads.has(key)],
        )
        for each in connections
    }
    if blobs:
        transfer.begin()
    turns = asyncio.Semaphore(_AT_ONCE)

    async def send_in_turn(key: str, data: memoryview) -> None:
        async with turns:
            await _send_one(key, data, hosts)

    small = {key: data for key, data in blobs.items() if data.nbytes <= SMALL}
    large = {key: data for key, data in blobs.items() if key not in small}
    await _all_or_none(
        *(each.uploads.put(small, hosts[each]) for each in connections),
        *(send_in_turn(key, data) for key, data in large.items()),
    )


async def _all_or_none(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Wait for all; if one fails, stop the others, which hold the user's data."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_all([each for each in tasks if not each.done()])


async def _send_one(key: str, data: memoryview, hosts: _Hosts) -> None:
    lacking = [each for each in hosts if not each.uploads.has(key)]
    if len(lacking) > 1 and data.nbytes * len(lacking) > DIRECT:
        lacking = await _send_through_relay(key, data, hosts, lacking)
    await _all_or_none(*(each.uploads.put({key: data}, hosts[each]) for each in lacking))


async def _send_through_relay(
    key: str, data: memoryview, hosts: _Hosts, lacking: Sequence[Connection]
) -> list[Connection]:
    """Send a blob to one agent that relays it; return the connections of those it did not reach."""
    holders = [each for each in hosts if each not in lacking and each.is_up]
    first = next(iter(holders), None) or next((each for each in lacking if each.is_up), lacking[0])
    others = [each for each in lacking if each is not first]
    about = {"blob": key, "size": data.nbytes, "to": [_node(each).peer() for each in others]}
    passing_on = asyncio.ensure_future(
        first.request("pass_on", within=None, link_within=None, **about)
    )
    watching = [asyncio.ensure_future(_watch(key, each, hosts[each])) for each in others]
    try:
        await first.uploads.put({key: data}, hosts[first])
        answer = await passing_on
    except ClusterLost:
        raise
    except SkyError:
        return others
    finally:
        await cancel_all([passing_on, *watching])
    failed = answer["failed"]
    for each in others:
        if _node(each).node not in failed:
            each.uploads.note_arrived(key)
            hosts[each].on_arrived(key)
    return [each for each in others if _node(each).node in failed]


async def _watch(key: str, connection: Connection, host: HostTransfer) -> None:
    """Ask a node repeatedly how much of a blob it has got from others: it does not tell unasked."""
    while True:
        await asyncio.sleep(_ASK_EVERY)
        with contextlib.suppress(SkyError):
            host.on_arrived(key, (await connection.request("arrived", blob=key))["size"])


def _node(connection: Connection) -> Node:
    return connection.machine.nodes[0]
