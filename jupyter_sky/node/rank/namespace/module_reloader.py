"""Reloads the user's own modules in a rank before a run, if their files were edited."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from jupyter_sky.node.rank.namespace import attributes
from jupyter_sky.node.rank.namespace.reached_modules import reached
from jupyter_sky.serialization.process.reloading import (
    SourceFile,
    edited_uses,
    in_order,
    is_importable,
    reload,
    source_file,
)
from jupyter_sky.serialization.user_modules import PROGRAMS, is_user_code, user_source_file

_NOT_RELOADED = "{} was edited and cannot be loaded, so it stays as it was: {}"
_BUILT_AGAIN = (
    "{} was built again, and Python loads compiled modules once: `%sky restart` loads this one."
)


class ModuleReloader:
    """Reloads the user's modules in a process if their files were edited."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceFile] = dict(_sources_before)
        self._seen: set[str] = {*PROGRAMS, *_seen_before}
        self._count = 0
        self._folders: list[str] = []
        self._folder_count = 0
        self._extensions: dict[str, SourceFile] = {}
        self._failed: dict[str, Exception] = {}

    def record_imports(self, since: int) -> None:
        """Remember the files of newly imported modules.

        Parameters
        ----------
        since
            The earliest time at which they may have been imported, in nanoseconds since the epoch.
            A file written later may be newer than its module.
        """
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for name in sys.modules.keys() - self._seen:
            self._seen.add(name)
            path = user_source_file(sys.modules[name])
            source = source_file(path) if path else None
            if source:
                if source.stamp[0] >= since:
                    source.digest = ""
                self._sources[name] = source
            elif (path := _extension_file(sys.modules[name])) and (built := source_file(path)):
                self._extensions[name] = built

    def reload_edited(self, namespace: dict[str, Any], kept: Collection[str] = ()) -> None:
        """Reload the modules whose files were edited; `check` is to follow.

        As with ``%autoreload``, existing functions and objects get the new code, and names imported
        with ``from module import name`` are bound again. A module whose file fails stays as it was,
        as do those that import it; they are reloaded next time.

        Parameters
        ----------
        namespace
            The user's namespace.
        kept
            The full names of attributes that keep their values, like ``config:LR``.
        """
        self._failed = {}
        self._invalidate_finders()
        edited = dict(self._edited()) if self._sources else {}
        if not edited:
            return
        uses = edited_uses({name: source.path for name, source in edited.items()})
        for name in in_order(uses):
            if failed := next((each for each in uses[name] if each in self._failed), None):
                self._failed[name] = self._failed[failed]
                continue
            try:
                with attributes.kept([each for each in kept if each.startswith(f"{name}:")]):
                    reload(sys.modules[name], [namespace, *self._namespaces()])
                self._sources[name] = edited[name]
            except Exception as error:
                self._failed[name] = error

    def check(self, namespace: dict[str, Any], cell: str | None) -> None:
        """Refuse what needs a module that could not be reloaded; tell cells what stays as it was.

        Parameters
        ----------
        namespace
            The user's namespace.
        cell
            The cell that runs next; empty if nothing runs in this process, and ``None`` if it is
            not known what does.

        Raises
        ------
        Exception
            Whatever loading the edited file raised.
        """
        failed, self._failed = self._failed, {}
        if failed:
            first = next(iter(failed))
            name = first if cell is None else reached(cell, namespace, failed, self._sources)
            if name:
                raise failed[name]
        for name, error in failed.items() if cell else ():
            reason = f"{type(error).__name__}: {error}"
            print(_NOT_RELOADED.format(name, reason), file=sys.stderr)
        for name in self._built_again() if cell else ():
            print(_BUILT_AGAIN.format(name), file=sys.stderr)

    def _invalidate_finders(self) -> None:
        # Python finds a new file in a folder only after it has listed the folder again. Only a few
        # of the hundreds of folders that it searches are the user's.
        folders = sys.path_importer_cache
        if len(folders) != self._folder_count:
            self._folder_count = len(folders)
            self._folders = [folder for folder in folders if is_user_code(folder)]
        for folder in self._folders:
            finder: Any = folders.get(folder)
            if hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()

    def _edited(self) -> Iterator[tuple[str, SourceFile]]:
        for name, source in list(self._sources.items()):
            module = sys.modules.get(name)
            if module is None:  # it will be imported again
                del self._sources[name]
                self._seen.discard(name)
                continue
            path = None if _is_as_before(module, source) else user_source_file(module)
            newer = source_file(path, source) if path else None
            if newer and newer.digest != source.digest and is_importable(name, module):
                yield name, newer
            elif newer:
                self._sources[name] = newer

    def _built_again(self) -> Iterator[str]:
        for name, known in list(self._extensions.items()):
            path = _extension_file(sys.modules[name]) if name in sys.modules else None
            newer = source_file(path, known) if path else None
            if newer and newer.digest != known.digest:
                yield name
            if newer:
                self._extensions[name] = newer

    def _namespaces(self) -> list[dict[str, Any]]:
        return [vars(sys.modules[name]) for name in self._sources if name in sys.modules]


_sources_before: dict[str, SourceFile] = {}
_seen_before: set[str] = set()
"""What this process had looked at before it was forked."""


def look_ahead() -> None:
    """Examine the modules imported so far, for the ranks that this process will fork.

    A rank that examined thousands of modules would copy the memory pages that hold them.
    """
    reloader = ModuleReloader()
    reloader.record_imports(since=0)
    _sources_before.update(reloader._sources)
    _seen_before.update(reloader._seen)


def _extension_file(module: ModuleType) -> Path | None:
    """Return the file of a compiled module that is the user's own; ``None`` for others."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith(_COMPILED) and is_user_code(file):
        return Path(file)
    return None


_COMPILED = tuple(EXTENSION_SUFFIXES)


def _is_as_before(module: ModuleType, source: SourceFile) -> bool:
    """Return whether a module's file seems unchanged.

    This is called for each of the user's modules before each run.
    """
    name = str(source.path)
    if getattr(module, "__file__", None) != name or not source.digest:
        return False
    try:
        status = os.stat(name)  # noqa: PTH116
    except OSError:
        return False
    return (status.st_mtime_ns, status.st_size) == source.stamp
