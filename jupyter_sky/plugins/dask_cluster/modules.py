"""The user's own modules in Dask's processes, which import the modules of tasks.

Dask pickles a function of a module by name: workers, and the scheduler, which examines each graph,
must find the module. So the modules that the notebook has imported are sent before tasks. Where
these processes see the notebook's files, they are told where these are, and which were edited.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import blake3
import dask.config
from distributed import Scheduler, Worker
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.diskutils import WorkSpace

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import SkyError
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.process.module_attributes import users_modules
from jupyter_sky.serialization.process.reloading import (
    SourceFile,
    edited_uses,
    in_order,
    is_importable,
    reload,
    source_file,
)
from jupyter_sky.serialization.user_modules import (
    ImportPaths,
    SourceTree,
    source_trees,
    user_source_file,
)

_NAME = "jupyter-sky-modules"
_ATTEMPTS = 10
_PAUSE = 0.1  # seconds


@dataclass(frozen=True)
class _Versions:
    """The versions of modules that the notebook has imported, in files that all see.

    Attributes
    ----------
    digests
        Digests of their files, by the names of the modules.
    """

    digests: Mapping[str, str]


Installable = ImportPaths | SourceTree | _Versions


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
        self._sources: dict[str, SourceFile] = {}

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
            return [ImportPaths.here(), self._versions()]
        names = set()
        for value in list(pickling.main_namespace().values()):
            name = value.__name__ if inspect.ismodule(value) else None
            name = name or getattr(value, "__module__", None) or type(value).__module__
            if isinstance(name, str):
                names.add(name.partition(".")[0])
        return list(source_trees(names))

    def _versions(self) -> _Versions:
        for module in users_modules():
            name, path = module.__name__, user_source_file(module)
            source = source_file(path, self._sources.get(name)) if path else None
            if source:
                self._sources[name] = source
        return _Versions({name: source.digest for name, source in self._sources.items()})


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
    return (each.name, each.digest) if isinstance(each, SourceTree) else each


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


def _install(found: Sequence[Installable]) -> None:
    digests: dict[str, str] = {}
    for each in found:
        if isinstance(each, ImportPaths):
            sys.path[:] = [*sys.path, *(entry for entry in each.path if entry not in sys.path)]
        elif isinstance(each, SourceTree):
            each.install(Path(_work_dir().dir_path))
            digests.update(_digests(each))
        else:
            digests.update(each.digests)
    importlib.invalidate_caches()
    _reload_edited(digests)


def _digests(tree: SourceTree) -> Iterator[tuple[str, str]]:
    """Yield the names of the modules that a tree has, each with the digest of what it may read."""
    data = blake3.blake3()
    for path, content in sorted(tree.files.items()):
        if not path.endswith(".py"):
            data.update(path.encode()).update(content)
    for path, content in tree.files.items():
        if path.endswith(".py"):
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            yield name, blake3.blake3(content + data.digest()).hexdigest()


_loaded: dict[str, str] = {}
"""The digest of the file of each module that this process has loaded, or would load."""


def _reload_edited(digests: Mapping[str, str]) -> None:
    """Load modules again that this process has imported from files that are other ones now.

    So is, once, what it has imported before it was told of it: nobody knows which file that was.
    """
    edited = {}
    for name, digest in digests.items():
        module = sys.modules.get(name)
        path = user_source_file(module) if module and _loaded.get(name) != digest else None
        if module and path and not path.is_file():  # as where a module has become a package
            del sys.modules[name]
            _loaded[name] = digest
        elif module and path and is_importable(name, module):
            edited[name] = path
        else:
            _loaded[name] = digest
    for name in in_order(edited_uses(edited)):
        try:
            reload(sys.modules[name], [vars(each) for each in users_modules()])
        except Exception as error:  # whatever the user's code raises, of which not all can travel
            raise SkyError(
                f"Dask's workers cannot import {name} again after it was edited: "
                f"{type(error).__name__}: {error}: correct the module and run this again."
            ) from None
        _loaded[name] = digests[name]


@cache
def _work_dir() -> Any:
    """Return a folder of this process; Dask removes it at the end, or when it next starts here."""
    space: Any = WorkSpace  # without types
    base = Path(dask.config.get("temporary-directory"))  # set by `servers`, or the user
    return space(str(base / "dask-scratch-space")).new_work_dir(prefix="modules-")
