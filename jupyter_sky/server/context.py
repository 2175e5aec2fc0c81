"""The context shared by the routes: the server's kernels and folders, and our objects."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyter_server.utils import ensure_async
from tornado.web import HTTPError

from jupyter_sky.server import cluster_list
from jupyter_sky.server.actions import CLUSTER_NAME, ClusterActions
from jupyter_sky.server.cluster_list import (
    NO_CLUSTER,
    ClusterInventory,
    ServerKernel,
    ServerKernels,
)
from jupyter_sky.server.kernel_reports import KernelReports
from jupyter_sky.server.state_events import StateEvents
from jupyter_sky.server.status_poller import StatusPoller


class ServerContext:
    """One for each Jupyter server; every handler gets it.

    Parameters
    ----------
    serverapp
        The `jupyter_server.serverapp.ServerApp`.

    Attributes
    ----------
    reports
        Reads the kernels' reports about their clusters.
    poller
        Asks the agents of clusters that no kernel reports on.
    events
        Tells pages when to ask again.
    actions
        Runs actions of the sidebar.
    """

    def __init__(self, serverapp: Any) -> None:
        self._serverapp = serverapp
        self._root = Path(serverapp.root_dir).resolve()
        self.reports = KernelReports(Path(serverapp.runtime_dir))
        self.poller = StatusPoller()
        self.events = StateEvents(self.reports.runtime, serverapp.event_logger)
        self.actions = ClusterActions(self.reports)

    async def inventory(self) -> ClusterInventory:
        """Return the clusters of the registry and of the kernels' reports."""
        return await asyncio.to_thread(cluster_list.read_inventory, self.reports)

    async def inventory_with(self, identity: str) -> ClusterInventory:
        """Return the present clusters, among which there is one with this id.

        Raises
        ------
        HTTPError
            404, if there is none.
        """
        inventory = await self.inventory()
        if not inventory.row(identity) and not inventory.live_reports(identity):
            raise HTTPError(404, NO_CLUSTER)
        return inventory

    async def cluster_name(self, identity: str) -> str:
        """Return the name of the cluster with this id.

        Raises
        ------
        HTTPError
            404, if there is none; 503, if that is not known.
        """
        inventory = await self.inventory()
        row = inventory.row(identity)
        if inventory.home is None:
            raise HTTPError(503, " ".join(inventory.problems))
        if row is None or not CLUSTER_NAME.fullmatch(row.name):
            raise HTTPError(404, NO_CLUSTER)
        return row.name

    async def kernels(self) -> ServerKernels:
        """Return the kernels of this server."""
        manager = self._serverapp.kernel_manager
        paths = {
            session["kernel"]["id"]: session["path"]
            for session in await ensure_async(self._serverapp.session_manager.list_sessions())
            if session.get("type") == "notebook" and session.get("kernel")
        }
        by_id = {
            kernel["id"]: ServerKernel(paths.get(kernel["id"]), kernel["execution_state"] == "busy")
            for kernel in await ensure_async(manager.list_kernels())
        }
        return ServerKernels(self._root, by_id)

    def kernel_spec(self, kernel: str) -> Any:
        """Return the specification of a kernel of this server; ``None`` if there is none."""
        manager = self._serverapp.kernel_manager
        return manager.get_kernel(kernel).kernel_spec if kernel in manager else None
