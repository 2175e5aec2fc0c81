"""Telling the Jupyter server of this kernel's clusters, so that the sidebar need not ask for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import kernel_files
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.transport import event_loop

INTERVAL = 1.0
"""Seconds between two files, while something changes."""

_SOON = 0.25  # a short run is over by then: nothing is written while a person waits for it


class StatePublisher:
    """Keeps this kernel's file up to date, from the background thread.

    Parameters
    ----------
    shell
        The shell of the notebook.
    clusters
        Returns the clusters that the notebook is connected to.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        clusters: Callable[[], list[Cluster]],
    ) -> None:
        self._clusters = clusters
        self._troubles: dict[str, str] = {}
        self._notebook = str(
            os.environ.get("JPY_SESSION_NAME") or shell.user_ns.get("__vsc_ipynb_file__") or ""
        )
        self._idle_since: dict[str, float] = {}
        self._due: asyncio.TimerHandle | None = None
        self._over = False
        self._next = 0.0
        self._file = _connection_file(shell)
        if self._file is not None:
            event_loop.call(self._now)

    def add(self, cluster: Cluster, fresh: bool) -> None:
        """Tell of a cluster from now on; ``fresh`` says that nothing has run on it yet."""
        if self._file is None:
            return
        if fresh:
            self._idle_since[cluster.id] = time.time()
        cluster.listen(self.soon)
        event_loop.call(self._now)

    def note(self, cluster: Cluster, trouble: str) -> None:
        """Tell why the last thing that the sidebar asked for did not work; empty if it did."""
        if self._troubles.get(cluster.id, "") != trouble:
            self._troubles[cluster.id] = trouble
            event_loop.call(self._now)

    def soon(self) -> None:
        """Tell soon, and not too often; in the background thread."""
        if self._due is None and not self._over:
            loop = asyncio.get_running_loop()
            when = max(loop.time() + _SOON, self._next)
            self._due = loop.call_at(when, self._begin, loop)

    def close(self) -> None:
        """Take back what was told, because the kernel ends."""
        self._over = True
        if self._file is not None:
            kernel_files.remove(self._file.parent, _kernel(self._file))

    def _now(self) -> None:
        """Tell what a person waits for."""
        if self._due is not None:
            self._due.cancel()
        if not self._over:
            self._begin(asyncio.get_running_loop())

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = None
        self._next = loop.time() + INTERVAL
        # A file can take its time, on a home that comes over a network.
        loop.run_in_executor(None, self._write)

    def _write(self) -> None:
        if self._over or self._file is None:
            return
        clusters = [each for each in self._clusters() if each.state.phase is not ClusterPhase.DOWN]
        told = kernel_files.KernelFile(
            _kernel(self._file), self._notebook, time.time(), tuple(map(self._told, clusters))
        )
        try:
            kernel_files.write(self._file.parent, told)
        except OSError:
            return  # a full disk is no reason to trouble a run
        if self._over:  # in between
            self.close()

    def _told(self, cluster: Cluster) -> kernel_files.ClusterReport:
        snapshot: dict[str, Any] = dict(cluster.snapshot())
        run = snapshot["run"]
        idle_since = self._idle_since.get(cluster.id)
        if any(rank.run for rank in cluster.state.ranks):
            idle_since = None
        elif run and run["state"] != "running":
            idle_since = run["started"] + run["seconds"]
        return kernel_files.ClusterReport(
            cluster.id, snapshot, idle_since, self._troubles.get(cluster.id, "")
        )


def _connection_file(shell: InteractiveShell) -> Path | None:
    """Return the file by which a server finds this kernel; papermill and terminals have none."""
    config = getattr(getattr(shell, "kernel", None), "config", {}).get("IPKernelApp", {})
    file = Path(str(config.get("connection_file") or "" if config else ""))
    return file if file.name.startswith("kernel-") else None


def _kernel(file: Path) -> str:
    return file.stem.removeprefix("kernel-")
