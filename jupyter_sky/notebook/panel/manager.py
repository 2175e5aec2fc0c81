"""The panels of a notebook: one for each cluster, where a panel can be shown."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.errors import SkyError

if TYPE_CHECKING:
    from jupyter_sky.notebook.panel.widget import Panel


class PanelManager:
    """Shows panels, and saves their final state.

    Parameters
    ----------
    shell
        The shell of the notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._panels: dict[str, Panel] = {}
        self._available = hasattr(shell, "kernel")

    def prepare(self) -> None:
        """Begin to import ipywidgets: it takes about as long as a cluster takes to start."""
        if self._available:
            threading.Thread(target=self._import, daemon=True).start()

    def show(self, cluster: Cluster) -> bool:
        """Show the panel of a cluster in the current cell; return whether one can be shown."""
        if not self._available or not self._import():
            return False
        from jupyter_sky.notebook.panel.widget import Panel

        panel = self._panels.get(cluster.id)
        if panel is None:
            panel = self._panels[cluster.id] = Panel(_ClusterSource(cluster))
        panel.show()
        return True

    def handle_request(self, request: Mapping[str, object]) -> None:
        """Pass a message of a page on to the panel whose key it has as ``panel``; from any thread.

        The message is a `jupyter_sky.notebook.panel.widget.PanelMessage`, or should be.
        """
        message = dict(request)
        key = message.pop("panel", None)
        for panel in list(self._panels.values()):
            if panel.key == key:
                panel.handle_message(message)

    def finish(self, cluster: Cluster, run: RunHandle) -> None:
        """Show how a run ended at once, so that it is saved with its cell."""
        panel = self._panels.get(cluster.id)
        if panel and run.seconds > panel.worth_saving:
            panel.finish()

    def settle(self, cluster: Cluster) -> None:
        """Replace the panel of a cluster that has ended by a static view."""
        panel = self._panels.pop(cluster.id, None)
        if panel:
            panel.finish()
            panel.settle()

    def _import(self) -> bool:
        try:
            importlib.import_module("jupyter_sky.notebook.panel.widget")
        except (ImportError, SkyError):
            # Without ipywidgets, or in a checkout where the panel was not built, there is text.
            self._available = False
        return self._available


class _ClusterSource:
    """A cluster as the source of its panel."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def snapshot(self, rank: int) -> Snapshot:
        return self._cluster.snapshot(rank)

    def stop(self) -> None:
        self._cluster.interrupt()

    def listen(self, listener: Callable[[], None]) -> None:
        self._cluster.listen(listener)
