"""The parts of a cluster that can fail, and waiting until it is known that one has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests import node_processes
from tests.cluster.conftest import Cells
from tests.waiting import PATIENCE


def agent_of(cells: Cells, machine: int = 0) -> psutil.Process:
    """Return the process of an agent."""
    return psutil.Process(_machine(cells, machine)["pid"])


def fork_server_of(cells: Cells, machine: int = 0) -> psutil.Process:
    """Return the process that the ranks of an agent are forked from."""
    return node_processes.fork_server_of(agent_of(cells, machine))


def ended_in(message: dict[str, Any]) -> list[str]:
    """Return the run of each rank that a message of an agent says is done."""
    if message.get("event") == "ranks_done":
        return [message["run"]] * len(message["ranks"])
    return [message["run"]] if message.get("event") == "rank_done" else []


def until(cells: Cells, condition: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until a change of the cluster makes something true."""
    changed = threading.Event()
    cells.cluster.listen(changed.set)
    while not condition():
        assert changed.wait(within)
        changed.clear()


def folder_of(cells: Cells, machine: int = 0) -> Path:
    """Return the folder of an agent."""
    return Path(_machine(cells, machine)["folder"])


def blobs_of(cells: Cells, machine: int = 0) -> Path:
    """Return the folder of an agent's blobs, in shared memory."""
    return Path(_machine(cells, machine)["blobs"])


def attach(name: str, provider: Provider | None = None) -> Cells:
    """Take up a cluster, as another kernel does."""
    row = registry.find(name)
    assert row is not None
    _, runtime_env = assemble(ClusterSpec(name=name), [])
    cluster = Cluster.attach(row, provider or Local(), runtime_env, timeouts=Timeouts(stop=5))
    assert cluster is not None
    return Cells(cluster)


def _machine(cells: Cells, machine: int) -> dict[str, Any]:
    row = registry.find(cells.cluster.name)
    assert row is not None
    return row.machines[machine]
