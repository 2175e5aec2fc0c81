"""What a Jupyter server's extension shows of a cluster, and does to it, from beside the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_sky.server.actions import ClusterActions
from jupyter_sky.server.cluster_list import answer, read_inventory
from jupyter_sky.server.kernel_reports import KernelReports
from jupyter_sky.server.status_poller import StatusPoller
from tests.chance.world import World


def entry(world: World) -> Mapping[str, Any]:
    """Return the entry of a cluster among those that the sidebar lists."""
    inventory = read_inventory(KernelReports(world.folder))
    states = asyncio.run(StatusPoller().states(inventory.unattended))
    said = answer(inventory, states, {}, {}, Path("/"))
    assert not said["trouble"], said["trouble"]
    [found] = [each for each in said["clusters"] if each["name"] == world.cluster.name]
    return found


def interrupt(world: World) -> None:
    """Stop what runs, as the sidebar's button does where no kernel of the server has it."""
    reports = KernelReports(world.folder)
    inventory = read_inventory(reports)
    asyncio.run(ClusterActions(reports).run(inventory, world.cluster.id, "interrupt", {}))
