"""Forming the process group (rendezvous): all ranks enter it at once, or all of them leave it.

What is wanted: every rank in one group of torch.distributed before a run begins.

What does not work: asking the ranks and waiting. A rank that has entered the rendezvous is blocked
in C++ until all others have; if one of them cannot come, the rest wait for it and answer nothing.

The solution: each attempt has a generation and a deadline. When a rank reports an error or dies, or
the deadline passes, the agents make every rank leave: by an interrupt, and where that is not heard
in C++, by its side thread, which breaks the connections of the rendezvous.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runtime_env import deadline
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization.pickling import main_namespace
from jupyter_sky.transport.error_report import ErrorReport
from jupyter_sky.transport.messages import FormRequest
from jupyter_sky.transport.topology import Topology

PATIENCE = 0.5
"""Seconds for ranks to come to the end of a rendezvous that is not wanted any more."""


async def ensure_formed(controller: Controller) -> None:
    """Wait until the ranks are there and in one group, forming it anew if it was broken."""
    if controller.state.group and controller.state.settled:
        return
    limit = controller.timeouts.stop + controller.timeouts.start
    async with deadline(limit, "the ranks are still busy"):
        await controller.until(lambda: controller.state.settled)
    if not controller.state.group:
        await form(controller)


async def form(controller: Controller) -> None:
    """Form a group of a new generation from all ranks of a cluster.

    Raises
    ------
    SkyError
        When a rank cannot enter it; the others have left the rendezvous then.
    """
    async with controller.forming:
        try:
            await _form(controller)
        except SkyError:
            # Ranks already in the rendezvous block until they are told to abort.
            await asyncio.shield(_abort(controller, patience=0.0))
            raise
        except BaseException:
            await asyncio.shield(_abort(controller, PATIENCE))
            raise


async def _form(controller: Controller) -> None:
    generation = controller.state.generation + 1
    controller.state = replace(controller.state, generation=generation)
    controller.form_errors.clear()
    runtime_env, sync = controller.runtime_env, controller.sync
    topology = await _topology(controller, generation)
    update = sync.update(runtime_env.needs, main_namespace(), controller.ranks)
    assert runtime_env.life is not None
    names: list[Any] = update.groups
    request: FormRequest = {"topology": topology, "life": runtime_env.life, "names": names}
    connections = list(controller.connections)
    await broadcast.send({**update.blobs, **runtime_env.blobs}, connections)
    await asyncio.gather(*(each.request("form", **request) for each in connections))
    sync.sent(update)
    async with deadline(controller.timeouts.form, "the process group was not formed"):
        await controller.until(lambda: controller.state.group or bool(controller.form_errors))
    if controller.form_errors:
        rank, error = min(controller.form_errors.items())
        raise SkyError(f"rank {rank} could not join the group: {_first_line(error)}")


async def _topology(controller: Controller, generation: int) -> Topology:
    """Return who is where, with a port that is free on the head."""
    nodes = controller.state.nodes
    places: list[Any] = [node.message() for node in nodes]
    answer = await controller.connection(0).request("reserve", rank=0, addr=nodes[0].addr)
    return {
        "cluster": controller.spec.name,
        "task_id": f"{controller.spec.name}-{controller.id}",
        "generation": generation,
        "head_addr": nodes[0].addr,
        "head_port": answer["port"],
        "nodes": places,
    }


async def _abort(controller: Controller, patience: float) -> None:
    """Take all ranks out of the rendezvous, those that do not finish it in ``patience`` seconds."""
    within = patience + controller.timeouts.stop

    async def abort(connection: Connection) -> None:
        with contextlib.suppress(SkyError):
            await connection.request("abandon", within=within, patience=patience)

    await asyncio.gather(*(abort(each) for each in controller.connections if each.is_up))


def _first_line(error: ErrorReport) -> str:
    lines = error["text"].strip().splitlines() or [error["type"]]
    return f"{error['type']}: {lines[0]}"
