"""Reloads the user's own modules in a rank before a run, if their files were edited."""

from __future__ import annotations

import builtins
import contextlib
import enum
import graphlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import blake3

from jupyter_sky.node.rank.namespace import attributes
from jupyter_sky.serialization.user_modules import (
    PROGRAMS,
    imported_by,
    is_user_code,
    user_source_file,
)


@dataclass
class _SourceFile:
    """The state of a file when its module was loaded.

    Attributes
    ----------
    path
        Where it is.
    stamp
        Its modification time in nanoseconds, and its size in bytes.
    digest
        The digest of its content; empty if it may have changed since the module was loaded.
    """

    path: Path
    stamp: tuple[int, int]
    digest: str


class ModuleReloader:
    """Reloads the user's modules in a process if their files were edited."""

    def __init__(self) -> None:
        self._sources: dict[str, _SourceFile] = dict(_sources_before)
        self._seen: set[str] = {*PROGRAMS, *_seen_before}
        self._count = 0
        self._folders: list[str] = []
        self._folder_count = 0

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
            source = _source(path) if path else None
            if source:
                if source.stamp[0] >= since:
                    source.digest = ""
                self._sources[name] = source

    def reload_edited(self, namespace: dict[str, Any], kept: Collection[str] = ()) -> None:
        """Reload the modules whose files were edited.

        As with ``%autoreload``, existing functions and objects get the new code, and names imported
        with ``from module import name`` are bound again.

        Parameters
        ----------
        namespace
            The user's namespace.
        kept
            The full names of attributes that keep their values, like ``config:LR``.

        Raises
        ------
        Exception
            Whatever loading an edited file raises. Its module stays as it was, and is reloaded next
            time.
        """
        self._invalidate_finders()
        edited = dict(self._edited()) if self._sources else {}
        if not edited:
            return
        for name in _in_order(edited):
            with attributes.kept([each for each in kept if each.startswith(f"{name}:")]):
                _reload(sys.modules[name], [namespace, *self._namespaces()])
            self._sources[name] = edited[name]

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

    def _edited(self) -> Iterator[tuple[str, _SourceFile]]:
        for name, source in list(self._sources.items()):
            module = sys.modules.get(name)
            if module is None:  # it will be imported again
                del self._sources[name]
                self._seen.discard(name)
                continue
            path = None if _is_as_before(module, source) else user_source_file(module)
            newer = _source(path, source) if path else None
            if newer and newer.digest != source.digest and _is_importable(name, module):
                yield name, newer
            elif newer:
                self._sources[name] = newer

    def _namespaces(self) -> list[dict[str, Any]]:
        return [vars(sys.modules[name]) for name in self._sources if name in sys.modules]


_sources_before: dict[str, _SourceFile] = {}
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


def _is_as_before(module: ModuleType, source: _SourceFile) -> bool:
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


def _is_importable(name: str, module: ModuleType) -> bool:
    """Return whether Python can find a module by its name.

    Modules that `torch.compile` generates are named as children of a module that is not a package.
    """
    package = name.rpartition(".")[0]
    path = getattr(sys.modules.get(package), "__path__", None)
    if module.__spec__ is None or (package and path is None):
        return False
    return any(
        finder.find_spec(name, path, module) is not None
        for finder in sys.meta_path
        if hasattr(finder, "find_spec")
    )


def _source(path: Path, known: _SourceFile | None = None) -> _SourceFile | None:
    """Return the present state of a file, which is read only if it seems to have changed."""
    with contextlib.suppress(OSError):
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if known and known.digest and (path, stamp) == (known.path, known.stamp):
            return known
        return _SourceFile(path, stamp, blake3.blake3(path.read_bytes()).hexdigest())
    return None


def _in_order(edited: dict[str, _SourceFile]) -> list[str]:
    """Return modules in an order in which each follows those that it uses."""
    uses = {}
    for name, source in edited.items():
        package = name if hasattr(sys.modules[name], "__path__") else name.rpartition(".")[0]
        uses[name] = imported_by(source.path.read_bytes(), package) & edited.keys() - {name}
    with contextlib.suppress(graphlib.CycleError):
        return list(graphlib.TopologicalSorter(uses).static_order())
    return list(edited)


def _reload(module: ModuleType, namespaces: Sequence[dict[str, Any]]) -> None:
    from IPython.extensions.autoreload import superreload

    # Python considers bytecode current if the source has the same size and second of modification.
    with contextlib.suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(str(module.__file__))).unlink()
    former = dict(vars(module))
    with _keeping_enum_members(module, former):
        superreload(module, importlib.reload, {})
    for name, old in former.items():
        new = vars(module).get(name)
        if isinstance(old, type) and isinstance(new, type) and old.__module__ == module.__name__:
            _move_subclasses(old, new)
    for namespace in namespaces:
        if namespace is not vars(module):
            _rebind(namespace, module, former)


@contextlib.contextmanager
def _keeping_enum_members(module: ModuleType, former: dict[str, Any]) -> Iterator[None]:
    """Have the enums of a module that is loaded again keep their members.

    Members are compared by identity, by ``==`` too, and values of the user's hold on to them. They
    are kept as soon as the class is made, because the rest of the module refers to them.
    """
    functions = vars(builtins)
    build = functions["__build_class__"]

    def build_class(body: FunctionType, name: str, *bases: Any, **options: Any) -> Any:
        made = build(body, name, *bases, **options)
        if body.__globals__ is vars(module) and isinstance(made, enum.EnumType):
            old = _in_namespace(former, made.__qualname__)
            if isinstance(old, enum.EnumType):
                _take_over_members(old, made)
        return made

    functions["__build_class__"] = build_class
    try:
        yield
    finally:
        functions["__build_class__"] = build


def _in_namespace(namespace: dict[str, Any], path: str) -> Any:
    """Return what a qualified name like ``Config.Mode`` stands for, or ``None``."""
    first, *rest = path.split(".")
    value = namespace.get(first)
    for part in rest:
        value = vars(value).get(part) if isinstance(value, type) else None
    return value


def _take_over_members(old: Any, new: Any) -> None:
    """Put the members of an enum into the class that replaces it, with what these are now."""
    kept: dict[int, Any] = {}
    for name, made in new.__members__.items():
        member = old.__members__.get(name)
        # A member of IntEnum is a number, too, and that cannot change.
        is_plain = new._member_type_ is object
        if id(made) not in kept and member is not None and (is_plain or member.value == made.value):
            with contextlib.suppress(TypeError):  # if the new class has another layout
                object.__setattr__(member, "__class__", new)
                vars(member).update(vars(made))
                kept[id(made)] = member
        if id(made) in kept and vars(new).get(name) is made:
            type.__setattr__(new, name, kept[id(made)])
    for places in (new._member_map_, new._value2member_map_):
        places.update({key: kept.get(id(each), each) for key, each in places.items()})
    if issubclass(new, enum.Flag):  # combinations that were made before
        for value, member in old._value2member_map_.items():
            if value not in new._value2member_map_:
                object.__setattr__(member, "__class__", new)
                new._value2member_map_[value] = member


def _move_subclasses(old: type, new: type) -> None:
    """Rebase the subclasses of a class on the class that replaces it."""
    children: list[type] = old.__subclasses__()
    for child in children:
        with contextlib.suppress(TypeError):  # if the new class has another layout
            child.__bases__ = tuple(new if base is old else base for base in child.__bases__)


def _rebind(namespace: dict[str, Any], module: ModuleType, former: dict[str, Any]) -> None:
    """Rebind names that were imported from a module to the module's new objects."""
    now = vars(module)
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        source = name
        if isinstance(value, (type, FunctionType)) and value.__module__ == module.__name__:
            source = value.__name__  # even if it was imported under another name
        if source in now and former.get(source, _MISSING) is value:
            namespace[name] = now[source]


_MISSING = object()
