"""The user's own modules in Dask's processes, which import what a task names.

Dask pickles a function of a module by name: whoever calls it, and the scheduler, which looks into
each graph, has to find the module. So what the notebook has imported is sent before the tasks.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import blake3
import dask.config
from distributed import Scheduler, Worker
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.diskutils import WorkSpace

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.user_modules import ImportPaths, SourceTree, source_trees

_NAME = "jupyter-sky-modules"

Installable = ImportPaths | SourceTree


class UserModules:
    """The modules that the notebook has imported, as Dask's processes were sent them.

    Parameters
    ----------
    cluster
        The cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sending = threading.Lock()
        self._sent: tuple[object, ...] = ()

    def send(self, client: Any) -> None:
        """Send what is new or was edited; what was sent is there for workers that come later."""
        if client.asynchronous:
            return  # nobody can wait here: in the thread that does, the first task was sent
        with self._sending:
            found = self._find()
            # A scheduler that has taken the place of another knows nothing.
            sent = (client._scheduler_identity.get("id"), *map(_identity, found))
            if sent == self._sent:
                return
            client.register_plugin(_ForScheduler(found), name=f"{_NAME}-{_digest(sent)}")
            client.register_plugin(_ForWorkers(found), name=_NAME)
            self._sent = sent

    def _find(self) -> Sequence[Installable]:
        if self._cluster.sync.shares_files:
            return [ImportPaths.here()]
        names = set()
        for value in list(pickling.main_namespace().values()):
            name = value.__name__ if inspect.ismodule(value) else None
            name = name or getattr(value, "__module__", None) or type(value).__module__
            if isinstance(name, str):
                names.add(name.partition(".")[0])
        return list(source_trees(names))


def _identity(each: Installable) -> object:
    return each if isinstance(each, ImportPaths) else (each.name, each.digest)


def _digest(value: object) -> str:
    return blake3.blake3(repr(value).encode()).hexdigest()[:12]


class _ForWorkers(WorkerPlugin):
    """Installs modules in each worker."""

    def __init__(self, found: Sequence[Installable]) -> None:
        self._found = found

    def setup(self, worker: Worker) -> None:
        _install(self._found)


class _ForScheduler(SchedulerPlugin):
    """Installs modules in the scheduler."""

    def __init__(self, found: Sequence[Installable]) -> None:
        self._found = found

    async def start(self, scheduler: Scheduler) -> None:
        _install(self._found)


_installed: dict[str, str] = {}
"""The version of each module that was sent to this process."""


def _install(found: Sequence[Installable]) -> None:
    for each in found:
        if isinstance(each, ImportPaths):
            sys.path[:] = [*sys.path, *(entry for entry in each.path if entry not in sys.path)]
            continue
        if _installed.get(each.name) == each.digest:
            continue
        each.install(Path(_work_dir().dir_path))
        if each.name in _installed:  # it was edited: what was imported is of the former version
            for name in list(sys.modules):
                if name == each.name or name.startswith(f"{each.name}."):
                    del sys.modules[name]
        _installed[each.name] = each.digest
    importlib.invalidate_caches()


@cache
def _work_dir() -> Any:
    """Return a folder of this process; Dask removes it with it, or when it starts here next."""
    space: Any = WorkSpace  # without types
    base = dask.config.get("temporary-directory") or tempfile.gettempdir()
    return space(str(Path(base) / "dask-scratch-space")).new_work_dir(prefix="modules-")
