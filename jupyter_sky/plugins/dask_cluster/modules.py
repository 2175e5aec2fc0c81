"""The user's own modules in Dask's processes, which import the modules of tasks.

Dask pickles a function of a module by name: workers, and the scheduler, which examines each graph,
must find the module. So the modules that the notebook has imported are sent before tasks.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
import threading
import time
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
_ATTEMPTS = 10
_PAUSE = 0.1  # seconds

Installable = ImportPaths | SourceTree


class UserModules:
    """The modules of the notebook that were sent to Dask's processes.

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
        """Send new and edited modules; workers that connect later get them, too."""
        if client.asynchronous:
            return  # this thread cannot wait: `send` was called in one that can
        with self._sending:
            found = self._find()
            # A scheduler that replaced another one knows nothing.
            sent = (client._scheduler_identity.get("id"), *map(_identity, found))
            if sent == self._sent:
                return
            client.register_plugin(_ForScheduler(found), name=f"{_NAME}-{_digest(sent)}")
            _register_on_workers(client, found)
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


def _register_on_workers(client: Any, found: Sequence[Installable]) -> None:
    """Have workers install modules, also while one of them ends, which fails for all."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            client.register_plugin(_ForWorkers(found), name=_NAME)
            return
        except OSError:
            if not left:
                raise
            time.sleep(_PAUSE)  # until the scheduler has noticed


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
        if each.name in _installed:  # it was edited: the imported module is the previous version
            for name in list(sys.modules):
                if name == each.name or name.startswith(f"{each.name}."):
                    del sys.modules[name]
        _installed[each.name] = each.digest
    importlib.invalidate_caches()


@cache
def _work_dir() -> Any:
    """Return a folder of this process; Dask removes it at the end, or when it next starts here."""
    space: Any = WorkSpace  # without types
    base = dask.config.get("temporary-directory") or tempfile.gettempdir()
    return space(str(Path(base) / "dask-scratch-space")).new_work_dir(prefix="modules-")
