"""The person's own modules in a rank: those that were edited are loaded anew before a run."""

from __future__ import annotations

import contextlib
import graphlib
import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import blake3

from jupyter_sky.serialization.user_modules import imported_by, is_user_code, user_source_file


@dataclass
class _Source:
    """A file as it was when its module was loaded; ``digest`` is empty if that is not known."""

    path: Path
    stamp: tuple[int, int]
    digest: str


def now() -> int:
    """Return the time in nanoseconds, by the clock that files are dated with."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME))


class Sources:
    """Keeps the modules of a process as new as their files are."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._seen: set[str] = {"__main__", "__mp_main__"}
        self._count = 0
        self._folders: list[str] = []
        self._folder_count = 0

    def note(self, since: int) -> None:
        """Take note of the modules that were imported.

        Parameters
        ----------
        since
            When that can have begun, by ``now``. A file that was written later may be newer than
            its module.
        """
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for name in sys.modules.keys() - self._seen:
            self._seen.add(name)
            path = user_source_file(sys.modules[name])
            source = _source(path) if path else None
            if source:
                if source.stamp[0] >= since:
                    source.digest = ""
                self._sources[name] = source

    def refresh(self, namespace: dict[str, Any]) -> None:
        """Load anew what was edited.

        As with ``%autoreload``, functions and objects that were made before get the new code, and
        what was imported with ``from module import name`` is bound anew.

        Parameters
        ----------
        namespace
            The person's.

        Raises
        ------
        Exception
            What loading an edited file raises. It stays as it was, and is tried again next time.
        """
        self._forget_folders()
        edited = dict(self._edited())
        for name in _in_order(edited) if edited else ():
            _load_anew(sys.modules[name], [namespace, *self._namespaces()])
            self._sources[name] = edited[name]

    def _forget_folders(self) -> None:
        # A file that is new in a folder is found only when the folder is looked through again.
        # Of the hundreds of folders that Python looks into, a few are the person's.
        folders = sys.path_importer_cache
        if len(folders) != self._folder_count:
            self._folder_count = len(folders)
            self._folders = [folder for folder in folders if is_user_code(folder)]
        for folder in self._folders:
            finder: Any = folders.get(folder)
            if hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()

    def _edited(self) -> Iterator[tuple[str, _Source]]:
        for name, source in list(self._sources.items()):
            module = sys.modules.get(name)
            if module is None:  # it will be imported anew
                del self._sources[name]
                self._seen.discard(name)
                continue
            path = user_source_file(module)
            newer = _source(path, source) if path else None
            if newer and newer.digest != source.digest:
                yield name, newer
            elif newer:
                self._sources[name] = newer

    def _namespaces(self) -> list[dict[str, Any]]:
        return [vars(sys.modules[name]) for name in self._sources if name in sys.modules]


def _source(path: Path, known: _Source | None = None) -> _Source | None:
    """Return what a file is like now; it is read only if it seems to differ from what is known."""
    with contextlib.suppress(OSError):
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if known and known.digest and (path, stamp) == (known.path, known.stamp):
            return known
        return _Source(path, stamp, blake3.blake3(path.read_bytes()).hexdigest())
    return None


def _in_order(edited: dict[str, _Source]) -> list[str]:
    """Return modules so that each comes after those that it uses."""
    uses = {}
    for name, source in edited.items():
        package = name if hasattr(sys.modules[name], "__path__") else name.rpartition(".")[0]
        uses[name] = imported_by(source.path.read_bytes(), package) & edited.keys() - {name}
    with contextlib.suppress(graphlib.CycleError):
        return list(graphlib.TopologicalSorter(uses).static_order())
    return list(edited)


def _load_anew(module: ModuleType, namespaces: Sequence[dict[str, Any]]) -> None:
    from IPython.extensions.autoreload import superreload

    # Bytecode that was compiled within the same second, of a source of the same size, passes for
    # that of the new one.
    with contextlib.suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(str(module.__file__))).unlink()
    former = dict(vars(module))
    superreload(module, importlib.reload, {})
    for name, old in former.items():
        new = vars(module).get(name)
        if isinstance(old, type) and isinstance(new, type) and old.__module__ == module.__name__:
            _adopt_subclasses(old, new)
    for namespace in namespaces:
        if namespace is not vars(module):
            _bind_anew(namespace, module, former)


def _adopt_subclasses(old: type, new: type) -> None:
    children: list[type] = old.__subclasses__()
    for child in children:
        with contextlib.suppress(TypeError):  # where the new one has another layout
            child.__bases__ = tuple(new if base is old else base for base in child.__bases__)


def _bind_anew(namespace: dict[str, Any], module: ModuleType, former: dict[str, Any]) -> None:
    """Bind what came from a module to what the module has now under its name."""
    now = vars(module)
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        source = name
        if isinstance(value, (type, FunctionType)) and value.__module__ == module.__name__:
            source = value.__name__  # also if it was imported as something else
        if source in now and former.get(source, _nothing) is value:
            namespace[name] = now[source]


_nothing = object()
