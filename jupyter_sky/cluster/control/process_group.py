"""Forming the process group: all ranks at once, or none of them waits for the others any longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jupyter_sky.cluster.network import broadcast
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization.pickling import main_namespace
from jupyter_sky.transport.frames import Message

if TYPE_CHECKING:
    from jupyter_sky.cluster.control.controller import Conductor

PATIENCE = 0.5
"""Seconds for ranks to come to the end of a formation that is not wanted any more."""


async def form(conductor: Conductor) -> None:
    """Have all ranks of a cluster form a group of a new generation.

    Raises
    ------
    SkyError
        When one of them cannot. The others have let go of it then.
    """
    async with conductor.forming:
        try:
            await _form(conductor)
        except SkyError:
            # Those that came would wait for the one that does not, deaf to everything else.
            await asyncio.shield(_abandon(conductor, patience=0.0))
            raise
        except BaseException:
            await asyncio.shield(_abandon(conductor, PATIENCE))
            raise


async def _form(conductor: Conductor) -> None:
    generation = conductor.state.generation + 1
    conductor.state = replace(conductor.state, generation=generation)
    conductor.form_errors.clear()
    nodes = conductor.state.nodes
    head = conductor.connection(0)
    answer = await head.request("reserve", rank=0, addr=nodes[0].addr)
    topology = {
        "cluster": conductor.spec.name,
        "task_id": f"{conductor.spec.name}-{conductor.id}",
        "generation": generation,
        "head_addr": nodes[0].addr,
        "head_port": answer["port"],
        "nodes": [node.message() for node in nodes],
    }
    frame, outbox = conductor.frame, conductor.outbox
    parcel = outbox.parcel(frame.needs, main_namespace(), conductor.ranks)
    message: Message = {"topology": topology, "life": frame.life, "names": parcel.groups}
    connections = list(conductor.connections)
    await broadcast.deliver({**parcel.blobs, **frame.blobs}, connections)
    await asyncio.gather(*(each.request("form", **message) for each in connections))
    outbox.sent(parcel)
    async with deadline(conductor.limits.form, "the process group was not formed"):
        await conductor.until(lambda: conductor.state.group or bool(conductor.form_errors))
    if conductor.form_errors:
        rank, error = min(conductor.form_errors.items())
        raise SkyError(f"rank {rank} could not join the group: {_sentence(error)}")


async def _abandon(conductor: Conductor, patience: float) -> None:
    within = patience + conductor.limits.stop

    async def abandon(connection: Any) -> None:
        with contextlib.suppress(SkyError):
            await connection.request("abandon", within=within, patience=patience)

    await asyncio.gather(*(abandon(each) for each in conductor.connections if each.is_up))


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
