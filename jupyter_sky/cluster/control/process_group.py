"""Forming the process group: all ranks at once, or none of them waits for the others any longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jupyter_sky.cluster.network import broadcast
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization.pickling import main_namespace
from jupyter_sky.transport.frames import Message

if TYPE_CHECKING:
    from jupyter_sky.cluster.control.controller import Controller

PATIENCE = 0.5
"""Seconds for ranks to come to the end of a formation that is not wanted any more."""


async def form(controller: Controller) -> None:
    """Have all ranks of a cluster form a group of a new generation.

    Raises
    ------
    SkyError
        When one of them cannot. The others have let go of it then.
    """
    async with controller.forming:
        try:
            await _form(controller)
        except SkyError:
            # Those that came would wait for the one that does not, deaf to everything else.
            await asyncio.shield(_abandon(controller, patience=0.0))
            raise
        except BaseException:
            await asyncio.shield(_abandon(controller, PATIENCE))
            raise


async def _form(controller: Controller) -> None:
    generation = controller.state.generation + 1
    controller.state = replace(controller.state, generation=generation)
    controller.form_errors.clear()
    nodes = controller.state.nodes
    head = controller.connection(0)
    answer = await head.request("reserve", rank=0, addr=nodes[0].addr)
    topology = {
        "cluster": controller.spec.name,
        "task_id": f"{controller.spec.name}-{controller.id}",
        "generation": generation,
        "head_addr": nodes[0].addr,
        "head_port": answer["port"],
        "nodes": [node.message() for node in nodes],
    }
    runtime_env, sync = controller.runtime_env, controller.sync
    ranks = controller.ranks
    # In a thread: what the plugins' hooks need is pickled, and the user's thread may be at it too.
    update = await asyncio.to_thread(
        partial(sync.update, runtime_env.needs, main_namespace(), ranks, at_once=True)
    )
    update.outdated.clear()  # ranks are not told of that here
    message: Message = {"topology": topology, "life": runtime_env.life, "names": update.groups}
    connections = list(controller.connections)
    sync.sent(update)
    try:
        await broadcast.deliver({**update.blobs, **runtime_env.blobs}, connections)
        await asyncio.gather(*(each.request("form", **message) for each in connections))
        async with deadline(controller.timeouts.form, "the process group was not formed"):
            await controller.until(lambda: controller.state.group or bool(controller.form_errors))
        if controller.form_errors:
            rank, error = min(controller.form_errors.items())
            raise SkyError(f"rank {rank} could not join the group: {_sentence(error)}")
    except BaseException:
        sync.lost(update)
        raise
    for rank in ranks:
        sync.ran(update, rank, {}, well=True)


async def _abandon(controller: Controller, patience: float) -> None:
    within = patience + controller.timeouts.stop

    async def abandon(connection: Any) -> None:
        with contextlib.suppress(SkyError):
            await connection.request("abandon", within=within, patience=patience)

    await asyncio.gather(*(abandon(each) for each in controller.connections if each.is_up))


@contextlib.asynccontextmanager
async def deadline(seconds: float, trouble: str) -> AsyncIterator[None]:
    """Be done within so many seconds, or say what was not."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise SkyError(f"{trouble} within {seconds:.0f} s.") from None


def _sentence(error: Mapping[str, Any]) -> str:
    lines = error["text"].strip().splitlines() or [error["type"]]
    return f"{error['type']}: {lines[0]}"
