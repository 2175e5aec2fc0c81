"""What a Jupyter server's extension shows of a cluster, and does to it, from beside the kernel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.server.actions import ClusterActions
from jupyter_sky.server.cluster_list import ServerKernels, answer, read_inventory
from jupyter_sky.server.kernel_reports import KernelReports
from jupyter_sky.server.schema import ClusterStatus
from jupyter_sky.server.status_poller import StatusPoller
from tests.chance.world import World
from tests.waiting import PATIENCE


def entry(world: World) -> Mapping[str, Any]:
    """Return the entry of a cluster among those that the sidebar lists, as soon as it is known."""
    inventory = read_inventory(KernelReports(world.folder))
    states = asyncio.run(_states(inventory.unattended))
    said = answer(inventory, states, {}, ServerKernels(Path("/"), {}))
    assert not said["trouble"], said["trouble"]
    [found] = [each for each in said["clusters"] if each["name"] == world.cluster.name]
    return found


async def _states(rows: Sequence[RegistryRow]) -> dict[str, ClusterStatus]:
    """Ask until agents have answered: a page does not wait for those that are slow."""
    poller, deadline = StatusPoller(), time.monotonic() + PATIENCE
    while True:
        states = await poller.states(rows)
        if all(states.get(row.id, "unknown") != "unknown" for row in rows):
            return states
        assert time.monotonic() < deadline, states
        await asyncio.sleep(0.1)


def interrupt(world: World) -> None:
    """Stop what runs, as the sidebar's button does where no kernel of the server has it."""
    reports = KernelReports(world.folder)
    inventory = read_inventory(reports)
    asyncio.run(ClusterActions(reports).run(inventory, world.cluster.id, "interrupt", {}))
