"""Writes this kernel's clusters into a file that the Jupyter server reads for the sidebar.

The sidebar is up to date while the kernel is busy, since nobody has to ask it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import kernel_files
from jupyter_sky.cluster.inventory.kernel_files import ClusterReport, KernelFile
from jupyter_sky.notebook.kernel import connection_file, notebook_path
from jupyter_sky.notebook.throttle import Throttle, call_in_thread

INTERVAL = 1.0
"""Seconds between two files, while output and the use of devices change."""

_DELAY = 0.2  # seconds; a short run has ended by then, so that no user waits for a file


class StatePublisher:
    """Keeps this kernel's file up to date; a `jupyter_sky.notebook.client_plugins.SessionObserver`.

    Parameters
    ----------
    shell
        The shell of the notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._idle_since: dict[str, float] = {}
        self._busy: dict[str, Set[str]] = {}  # what ran on clusters when they were last seen
        self._notebook = notebook_path(shell)
        self._closed = False
        self._news: tuple[object, ...] = ()
        # In threads: the folder may be on a slow network.
        self._throttle = Throttle(self._write, INTERVAL, _DELAY)
        self._news_throttle = Throttle(self._write_news, _DELAY, _DELAY)
        self._writing = threading.Lock()
        # The server finds a kernel by this name; papermill's kernels and terminals have none.
        file = Path(connection_file(shell))
        self._runtime = file.parent if file.name.startswith("kernel-") else None
        self._kernel = file.stem.removeprefix("kernel-")
        if self._runtime is not None:
            call_in_thread(0.0, self._throttle.call_now)

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """Publish a cluster from now on; ``is_new`` says that nothing has run on it yet."""
        if self._runtime is None:
            return
        self._clusters[cluster.id] = cluster
        if is_new:
            self._idle_since[cluster.id] = time.time()
        cluster.listen(self._throttle.request)
        cluster.listen(self._news_throttle.request)
        call_in_thread(0.0, self._throttle.call_now)

    def ending(self, cluster: Cluster) -> None:
        """Go on: its state says how far it is."""

    def disconnected(self, cluster: Cluster) -> None:
        """Leave a cluster out of the next file."""
        if self._clusters.get(cluster.id) is cluster:
            del self._clusters[cluster.id]

    def close(self) -> None:
        """Remove the file, because the kernel ends."""
        self._closed = True
        if self._runtime is not None:
            kernel_files.remove(self._runtime, self._kernel)

    def _write_news(self) -> None:
        """Write the file before its time if a run or a rank is in another state than it says."""
        if kernel_files.news(self._present()) != self._news:
            self._throttle.call_now()

    def _write(self) -> None:
        with self._writing:
            self._write_present()

    def _write_present(self) -> None:
        if self._closed or self._runtime is None:
            return
        present = self._present()
        self._news = kernel_files.news(present)
        try:
            kernel_files.write(self._runtime, present)
        except OSError:
            return  # a full disk is no reason to disturb a run
        if self._closed:  # while the file was written
            self.close()

    def _present(self) -> KernelFile:
        clusters = [each for each in list(self._clusters.values()) if each.state.phase != "down"]
        reports = tuple(map(self._report, clusters))
        return KernelFile(self._kernel, self._notebook, time.time(), reports)

    def _report(self, cluster: Cluster) -> ClusterReport:
        snapshot: dict[str, Any] = dict(cluster.snapshot())
        idle_since = self._idle_since_of(cluster, snapshot["run"])
        return ClusterReport(cluster.id, snapshot, idle_since)

    def _idle_since_of(self, cluster: Cluster, run: Mapping[str, Any] | None) -> float | None:
        if busy := cluster.state.busy_runs:
            self._busy[cluster.id] = busy
            return None
        if self._busy.pop(cluster.id, frozenset()) - {run["id"] if run else ""}:
            # One of another notebook, which alone knows when exactly it ended.
            self._idle_since[cluster.id] = time.time()
        ends = [self._idle_since[cluster.id]] if cluster.id in self._idle_since else []
        if run and run["state"] != "running":
            ends.append(run["started"] + run["seconds"])
        return max(ends, default=None)
