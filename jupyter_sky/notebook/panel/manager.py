"""The panels of a notebook: one for each cluster, where a panel can be shown."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.errors import SkyError

if TYPE_CHECKING:
    from jupyter_sky.notebook.panel.widget import Panel


class PanelManager:
    """Shows panels and keeps them up to date."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._panels: dict[str, Panel] = {}
        self._possible = hasattr(shell, "kernel")

    def prepare(self) -> None:
        """Begin to import what panels need: ipywidgets takes a while, as does a cluster's start."""
        if self._possible:
            threading.Thread(target=self._import, daemon=True).start()

    def show(self, cluster: Cluster) -> bool:
        """Show the panel of a cluster in the present cell; say whether one can be shown."""
        if not self._possible or not self._import():
            return False
        from jupyter_sky.notebook.panel.widget import Panel

        panel = self._panels.get(cluster.id)
        if panel is None:
            panel = self._panels[cluster.id] = Panel(_ClusterSource(cluster))
            cluster.listen(panel.update)
        panel.show()
        return True

    def take(self, request: Mapping[str, Any]) -> None:
        """Do what a page asks of one of the panels; from any thread."""
        for panel in list(self._panels.values()):
            if panel.key == request.get("panel"):
                panel.take({name: request[name] for name in request if name != "panel"})

    def finish(self, cluster: Cluster, run: RunHandle) -> None:
        """Have the panel show how a run ended, before its cell is over."""
        panel = self._panels.get(cluster.id)
        if panel and run.seconds > panel.worth_saving:
            panel.finish()

    def settle(self, cluster: Cluster) -> None:
        """Leave a picture where the panel of a cluster was that has ended."""
        panel = self._panels.pop(cluster.id, None)
        if panel:
            panel.finish()
            panel.settle()

    def _import(self) -> bool:
        try:
            importlib.import_module("jupyter_sky.notebook.panel.widget")
        except (ImportError, SkyError):
            # Without ipywidgets, or in a checkout where it was not built: text does.
            self._possible = False
        return self._possible


class _ClusterSource:
    """What a panel shows: a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def snapshot(self, rank: int) -> Snapshot:
        return self._cluster.snapshot(rank)

    def on_stop(self) -> None:
        self._cluster.interrupt()
