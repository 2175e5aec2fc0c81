"""Lets nodes make volumes, and write back what their ranks have written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import START_LINK_WITHIN
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes, format_count, format_list
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.buckets.credentials import order_of
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.transport.tasks import blocking
from jupyter_sky.transport.volumes.requests import (
    MountAnswer,
    VolumesAnswer,
    VolumeState,
    WriteBackAnswer,
    WrittenVolume,
    has_only_markers_left,
)

_RENEW_BEFORE = 0.5
"""The share of their time that credentials have left when others are sent."""

RENEW_EVERY = 60.0
"""Least seconds between two renewals, also where credentials have no time left."""

_NAMED = 3  # most files to name in a sentence


async def mount(
    connections: Sequence[Connection],
    volumes: Sequence[Volume],
    provider: Provider,
    warn: Callable[[Iterable[str]], None],
) -> float | None:
    """Make volumes on nodes, or send new credentials for existing ones.

    Parameters
    ----------
    connections
        The connections to the nodes.
    volumes
        The volumes.
    provider
        The provider of the nodes.
    warn
        Called with sentences for the user.

    Returns
    -------
    float or None
        When credentials have to be renewed, in seconds since the epoch; ``None`` for never.

    Raises
    ------
    SkyError
        If a node cannot make one, with what to do.
    """
    if not volumes:
        return None
    orders = [await blocking(order_of, each, provider) for each in volumes]

    async def mount_on(connection: Connection) -> MountAnswer:
        answer = await connection.request(
            "mount", within=None, link_within=START_LINK_WITHIN, volumes=orders
        )
        return cast(MountAnswer, answer)

    answers = await asyncio.gather(*map(mount_on, connections))
    for connection, answer in zip(connections, answers, strict=True):
        warn(f"{connection.name}: {note}" for note in answer["notes"])
        if trouble := answer["trouble"]:
            raise SkyError(f"{connection.name}: {trouble}.")
    expire = [each["token"]["expires"] for each in orders if each["token"]]
    first = min((each for each in expire if each is not None), default=None)
    now = time.time()
    return None if first is None else now + max((first - now) * _RENEW_BEFORE, RENEW_EVERY)


async def write_back(
    connections: Iterable[Connection],
) -> tuple[dict[str, list[WrittenVolume]], list[str]]:
    """Write back what ranks have written.

    Returns
    -------
    tuple
        The results by node name, and sentences about nodes that do not answer.
    """

    async def ask(connection: Connection) -> list[WrittenVolume] | SkyError:
        try:
            answer = await connection.request(
                "write_back", within=None, link_within=START_LINK_WITHIN
            )
        except SkyError as error:  # the others write for as long as it takes
            return error
        return cast(WriteBackAnswer, answer)["volumes"]

    every = list(connections)
    done: dict[str, list[WrittenVolume]] = {}
    troubles = []
    answers = await asyncio.gather(*map(ask, every))
    for connection, answer in zip(every, answers, strict=True):
        if not isinstance(answer, SkyError) and has_only_markers_left(answer):
            # The others have written meanwhile what these wait for.
            again = await ask(connection)
            answer = again if isinstance(again, SkyError) else _both(answer, again)
        if isinstance(answer, SkyError):
            troubles.append(not_known(connection.name, str(answer)))
        else:
            done[connection.name] = answer
    return done, troubles


def _both(first: list[WrittenVolume], then: list[WrittenVolume]) -> list[WrittenVolume]:
    """Return what a node has written in two rounds, and what the second has left."""
    before = {each["path"]: each for each in first}
    for each in then:
        if former := before.get(each["path"]):
            each["files"] += former["files"]
            each["size"] += former["size"]
            if not former["left"]:  # what its markers waited for is no trouble any more
                each["trouble"] = each["trouble"] or former["trouble"]
    return then


def not_known(node: str, reason: str) -> str:
    """Say that files of a node may not be in their bucket."""
    return f"what ranks of {node} have written to volumes may not be there: {reason}"


async def states(connections: Iterable[Connection]) -> dict[str, list[VolumeState]]:
    """Return the present state of volumes, by node name."""

    async def ask(connection: Connection) -> list[VolumeState]:
        answer = await connection.request("volumes", within=None)
        return cast(VolumesAnswer, answer)["volumes"]

    every = list(connections)
    answers = await asyncio.gather(*map(ask, every))
    return {each.name: answer for each, answer in zip(every, answers, strict=True)}


def sentences(said: dict[str, list[WrittenVolume]]) -> tuple[list[str], list[str]]:
    """Return sentences about what was written back, and what was not."""
    done: dict[str, list[int]] = {}
    troubles = []
    for node, volumes in said.items():
        for each in volumes:
            if each["files"]:
                counts = done.setdefault(each["url"], [0, 0])
                counts[0] += each["files"]
                counts[1] += each["size"]
            if each["left"]:
                names = [f"{each['path']}/{name}" for name in each["left"][:_NAMED]]
                more = len(each["left"]) - len(names)
                named = format_list([*names, *([f"{more} more"] if more > 0 else [])])
                troubles.append(
                    f"not written to {each['url']}: {named}, on {node} alone ({each['trouble']})"
                )
            elif each["trouble"]:
                troubles.append(f"{each['trouble']} ({node})")
    written = [
        f"wrote {format_count(files, 'file')}, {format_bytes(size)}, to {url}"
        for url, (files, size) in done.items()
    ]
    return written, list(dict.fromkeys(troubles))
