"""The request of a run, and how it gets to the agents that have ranks of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import asked_names
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.state import not_begun, running
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.transport.protocol.messages import RunRequest


async def dispatch(controller: Controller, run: Run) -> None:
    """Send the request of a run to every agent that has ranks of it."""
    task = run.task
    update = task.update
    names: list[Any] = update.groups
    controller.state = running(controller.state, task.ranks, run.id)
    request: RunRequest = {
        "run": run.id,
        "code": task.code,
        "call": task.call,
        "cells": dict(task.cells),
        "place": (task.place.title, task.place.above),
        "values": {rank: list(asked) for rank, asked in task.values.items()},
        "watched": sorted(task.update.watched.union(*task.values.values())),
        "outdated": task.update.outdated,
        "names": names,
        "show": list(task.show),
        "title": task.title,
        "everyone": list(task.ranks),
        "ranks": list(task.ranks),
        "together": controller.runtime_env.together and len(controller.ranks) > 1,
        "deadline": controller.timeouts.stop,
    }
    blobs = {**update.blobs, **task.blobs}
    if task.values:
        await _record_asked(controller.id, run)
    await asyncio.gather(
        *(_send_request(controller, each, run, request, blobs) for each in controller.connections)
    )


async def _send_request(
    controller: Controller,
    connection: Connection,
    run: Run,
    request: RunRequest,
    blobs: Mapping[str, memoryview],
) -> None:
    """Send the request of a run to one agent, for its ranks."""
    here = connection.ranks
    if not (ranks := [rank for rank in request["ranks"] if rank in here]):
        return
    names = [group for group in request["names"] if not here.isdisjoint(group["ranks"])]
    request = {**request, "ranks": ranks, "names": names}
    run.sent = True
    try:
        await _send_until_taken(connection, request, blobs)
    except (ClusterLost, NoConnection):
        raise  # whether it has begun there is not known
    except SkyError:
        controller.state = not_begun(controller.state, run.id, ranks)
        raise


async def _send_until_taken(
    connection: Connection, request: RunRequest, blobs: Mapping[str, memoryview]
) -> None:
    """Send a request, and again if the agent lacks some of the data."""
    for _ in range(2):
        if blobs:
            await connection.uploads.put(blobs)
        answer = await connection.request("run", link_within=None, **request)
        if "missing" not in answer:
            return
        connection.uploads.note_missing(answer["missing"])
    size = sum(blob.nbytes for blob in blobs.values())
    raise SkyError(
        f"the {format_bytes(size)} that this run needs did not arrive: they were changed on "
        "the way, or a node has no room for them in shared memory."
    )


async def _record_asked(cluster: str, run: Run) -> None:
    """Record what a run is asked for, before it begins: another kernel may take it up then."""
    with contextlib.suppress(OSError):
        await asyncio.to_thread(asked_names.record, cluster, run.id, run.task.values)
