"""Loads modules of the user's again whose files were edited, and renews what came from them."""

from __future__ import annotations

import builtins
import contextlib
import enum
import graphlib
import importlib
import importlib.util
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import blake3

from jupyter_sky.serialization.process.renewal import Renewal
from jupyter_sky.serialization.user_modules import imported_by

_ENDS = (
    "{} ends its program when it is imported, by sys.exit({}): put what does so below "
    "`if __name__ == '__main__':`."
)


@dataclass
class SourceFile:
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


def is_importable(name: str, module: ModuleType) -> bool:
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


def source_file(path: Path, known: SourceFile | None = None) -> SourceFile | None:
    """Return the present state of a file, which is read only if it seems to have changed."""
    with contextlib.suppress(OSError):
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if known and known.digest and (path, stamp) == (known.path, known.stamp):
            return known
        return SourceFile(path, stamp, blake3.blake3(path.read_bytes()).hexdigest())
    return None


def edited_uses(edited: Mapping[str, Path]) -> dict[str, frozenset[str]]:
    """Return for each of these modules which others of them it imports.

    Parameters
    ----------
    edited
        The files of modules, by the names of these.
    """
    uses = {}
    for name, path in edited.items():
        package = name if hasattr(sys.modules[name], "__path__") else name.rpartition(".")[0]
        uses[name] = imported_by(path.read_bytes(), package) & edited.keys() - {name}
    return uses


def in_order(uses: Mapping[str, frozenset[str]]) -> list[str]:
    """Return modules in an order in which each follows those that it uses.

    Parameters
    ----------
    uses
        For each of them, the others that it imports.
    """
    with contextlib.suppress(graphlib.CycleError):
        return list(graphlib.TopologicalSorter(uses).static_order())
    return list(uses)


def reload(module: ModuleType, namespaces: Sequence[dict[str, Any]]) -> None:
    """Load a module again; as with ``%autoreload``, existing objects get the new code.

    Parameters
    ----------
    module
        The module.
    namespaces
        Those in which names that were imported from it are bound again.

    Raises
    ------
    Exception
        Whatever loading its file raises. The module stays as it was.
    """
    # Python considers bytecode current if the source has the same size and second of modification.
    with contextlib.suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(str(module.__file__))).unlink()
    former = dict(vars(module))
    found = ((name, find()) for name, find in _gone.get(module.__name__, {}).items())
    known = {name: old for name, old in found if old is not None} | former
    try:
        vars(module).clear()
        vars(module).update(_known_before(former))
        with _keeping_enum_members(module, known):
            importlib.reload(module)
    except BaseException as error:
        vars(module).clear()
        vars(module).update(former)
        if isinstance(error, SystemExit):  # as of parse_args(): it is not the cell that ends
            code = "" if error.code is None else repr(error.code)
            raise ImportError(_ENDS.format(module.__name__, code), name=module.__name__) from error
        raise
    now = vars(module)
    Renewal(module.__name__).renew_all(known, now)
    for namespace in namespaces:
        if namespace is not now:
            _rebind(namespace, module, known)
    gone = {name: old for name, old in known.items() if name not in now}
    _gone[module.__name__] = {
        name: weakref.ref(old) for name, old in gone.items() if issubclass(type(old), _NAMED)
    }


_gone: dict[str, dict[str, weakref.ref[Any]]] = {}
"""Functions and classes that edits have taken away, by module: the next may bring them back.

Some editors empty a file before they write it.
"""


def _known_before(former: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a module that is loaded again has before its code runs."""
    prefix = f"{former['__name__']}."
    return {
        name: value
        for name, value in former.items()
        # Importing a submodule has bound it here, and will not again.
        if name in ("__name__", "__loader__") or value is sys.modules.get(prefix + name, _MISSING)
    }


@contextlib.contextmanager
def _keeping_enum_members(module: ModuleType, former: dict[str, Any]) -> Iterator[None]:
    """Have the enums of a module that is loaded again keep their members.

    Members are compared by identity, by ``==`` too, and values of the user's hold on to them. They
    are kept as soon as the class is made, because the rest of the module refers to them.
    """
    functions = vars(builtins)
    build = functions["__build_class__"]
    before: list[tuple[Any, Any, dict[str, Any]]] = []

    def build_class(body: FunctionType, name: str, *bases: Any, **options: Any) -> Any:
        made = build(body, name, *bases, **options)
        if body.__globals__ is vars(module) and isinstance(made, enum.EnumType):
            old: Any = _in_namespace(former, made.__qualname__)
            if isinstance(old, enum.EnumType):
                members = [*old.__members__.values(), *old._value2member_map_.values()]
                before.extend((each, type(each), dict(vars(each))) for each in members)
                _take_over_members(old, made)
        return made

    functions["__build_class__"] = build_class
    try:
        yield
    except BaseException:
        for member, kind, state in reversed(before):
            object.__setattr__(member, "__class__", kind)
            vars(member).clear()
            vars(member).update(state)
        raise
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


def _rebind(namespace: dict[str, Any], module: ModuleType, former: dict[str, Any]) -> None:
    """Rebind names that were imported from a module to the module's new objects."""
    now = vars(module)
    for name, value in list(namespace.items()):
        if name.startswith("__"):
            continue
        source = name
        if former.get(name, _MISSING) is not value and issubclass(type(value), _NAMED):
            source = value.__name__  # it may have been imported under another name
        if source in now and former.get(source, _MISSING) is value:
            namespace[name] = now[source]


_NAMED = (type, FunctionType)
_MISSING = object()
