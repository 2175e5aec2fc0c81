"""Broadcast of blobs: each leaves this process once, however many nodes need it.

One agent gets it from here and relays it to the others while it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.base import Node

DIRECT = 1024 * 1024
"""Bytes, to all nodes together, up to which a blob goes to each from here: that is sooner."""

_AT_ONCE = 4  # blobs

Progress = Callable[[int], None]
"""Called for each piece that leaves with its size in bytes."""


def bytes_to_send(blobs: Mapping[str, memoryview], connections: Sequence[Connection]) -> int:
    """Return how many bytes will leave this process until every node has the blobs."""
    return sum(
        data.nbytes * (lacking if _goes_directly(data, lacking) else 1)
        for key, data in blobs.items()
        if (lacking := len(_lacking(key, connections)))
        and (lacking == len(connections) or _goes_directly(data, lacking))
    )


async def send(
    blobs: Mapping[str, memoryview],
    connections: Sequence[Connection],
    progress: Progress = lambda count: None,
) -> None:
    """Send blobs to every node that lacks them, and return when all have them.

    Parameters
    ----------
    blobs
        The blobs by their digests.
    connections
        The connections to the nodes' agents.
    progress
        Called for each piece that leaves with its size in bytes.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def send_in_turn(key: str, data: memoryview) -> None:
        async with turns:
            await _send_one(key, data, connections, progress)

    await asyncio.gather(*(send_in_turn(key, data) for key, data in blobs.items()))


async def _send_one(
    key: str, data: memoryview, connections: Sequence[Connection], progress: Progress
) -> None:
    lacking = _lacking(key, connections)
    if not _goes_directly(data, len(lacking)):
        lacking = await _send_through_relay(key, data, connections, lacking, progress)
    await asyncio.gather(*(each.uploads.put({key: data}, progress) for each in lacking))


async def _send_through_relay(
    key: str,
    data: memoryview,
    connections: Sequence[Connection],
    lacking: Sequence[Connection],
    progress: Progress,
) -> list[Connection]:
    """Send a blob to one agent that relays it; return those whom it did not reach."""
    holders = [each for each in connections if each not in lacking and each.is_up]
    first = next(iter(holders), None) or next((each for each in lacking if each.is_up), lacking[0])
    others = [each for each in lacking if each is not first]
    about = {"blob": key, "size": data.nbytes, "to": [_node(each).peer() for each in others]}
    passing_on = asyncio.ensure_future(
        first.request("pass_on", within=None, link_within=None, **about)
    )
    try:
        await first.uploads.put({key: data}, progress)
        answer = await passing_on
    except ClusterLost:
        raise
    except SkyError:
        return others
    finally:
        passing_on.cancel()
    failed = {int(node) for node in answer["failed"]}
    for each in others:
        if _node(each).node not in failed:
            each.uploads.note_arrived(key)
    return [each for each in others if _node(each).node in failed]


def _node(connection: Connection) -> Node:
    return connection.machine.nodes[0]


def _lacking(key: str, connections: Sequence[Connection]) -> list[Connection]:
    return [each for each in connections if not each.uploads.has(key)]


def _goes_directly(data: memoryview, count: int) -> bool:
    return count < 2 or data.nbytes * count <= DIRECT
