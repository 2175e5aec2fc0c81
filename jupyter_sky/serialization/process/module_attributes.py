"""Attributes of modules and their classes that the notebook has set, so that ranks have them too.

``config.LR = 0.1``, ``Trainer.log_every = 10`` and ``transformers.Foo.forward = forward`` change no
name of the notebook, and a module travels as its import. What is set is sent like the value of a
name, under the attribute's full name (``config:LR``), and set again on the ranks
(`node.rank.namespace.attributes`).

So is an object that a module of the user's has as well as the notebook, after ``from config import
cfg``: on the ranks, too, it has to be one object, which ``cfg.lr = 0.1`` changes for the module.
So is, too, what a module has collected of the notebook, as ``@register`` does above a class: it is
added to what ranks have in its place.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any

from jupyter_sky.serialization.object_tokens.kinds import is_mutable
from jupyter_sky.serialization.user_modules import PROGRAMS, user_source_file

_noted: dict[str, None] = {}  # in the order in which they were set
_some_of: dict[str, None] = {}  # modules whose attributes were set by names that code computes
_DATA = (type(None), bool, int, float, complex, str, bytes, PurePath, tuple, list, dict, set)
_Imported = tuple[int, str]
"""How many modules there are, and the last one."""

_looked_up: dict[str, tuple[int, _Imported]] = {}  # the identity of a name's value, and when
_own_modules: tuple[_Imported, list[ModuleType]] = ((0, ""), [])


def note(targets: Iterable[str], namespace: Mapping[str, Any]) -> frozenset[str]:
    """Note what a cell has assigned, if it is an attribute of a module or of a class in one.

    Parameters
    ----------
    targets
        What it has assigned, as written, up to the first part that is no attribute: ``cfg.LR``;
        ``cfg.*`` for what only the running code knows.
    namespace
        The notebook's.

    Returns
    -------
    frozenset of str
        The full names of such attributes.
    """
    targets = list(targets)
    found = frozenset(filter(None, (_full_name(each, namespace) for each in targets)))
    some_of = frozenset(each for each in found if each.endswith(":*"))
    found -= some_of
    _some_of.update(dict.fromkeys(map(module_of, some_of)))
    _noted.update(dict.fromkeys(found))
    roots = {each.partition(".")[0] for each in targets}
    note_shared({name: namespace[name] for name in roots & namespace.keys()})
    return found


def _data_of(modules: Iterable[str]) -> Iterator[str]:
    """Yield the full names of what may have been set in modules: their data, not their code."""
    for name in modules:
        module = sys.modules.get(name)
        for attribute, value in list(vars(module).items()) if module else ():
            if isinstance(value, _DATA) and not attribute.startswith("__"):
                yield f"{name}:{attribute}"


def note_shared(values: Mapping[str, Any]) -> None:
    """Note objects of the notebook that modules of the user's have as well.

    Parameters
    ----------
    values
        Values of the notebook by name.
    """
    now = _imported()
    new = {name: each for name, each in values.items() if _looked_up.get(name) != (id(each), now)}
    _looked_up.update({name: (id(each), now) for name, each in new.items()})
    # Others are the same wherever they are imported from; an `object()` is pickled by its place.
    shared = (each for each in new.values() if is_mutable(each) and type(each) is not object)
    _noted.update(dict.fromkeys(places({id(each) for each in shared})))


def places(identities: Collection[int]) -> Iterator[str]:
    """Yield the full names of what modules of the user's have of some objects."""
    for module in users_modules() if identities else ():
        for name, value in list(vars(module).items()):
            if id(value) in identities and not name.startswith("__"):
                yield f"{module.__name__}:{name}"


@dataclass(frozen=True)
class Collected:
    """What a collection of a module has of the notebook; it is added to what ranks have there.

    Attributes
    ----------
    items
        Classes and functions, by their keys if they have some.
    """

    items: dict[Any, Any] | list[Any]


def note_collected(packages: Set[str]) -> frozenset[str]:
    """Note collections in modules of the user's which have classes or functions of the notebook.

    They are names of a module, or attributes of its classes or of its objects.

    Parameters
    ----------
    packages
        Top-level packages. If none of them is the user's, nothing is noted.

    Returns
    -------
    frozenset of str
        Their full names.
    """
    modules = users_modules()
    if packages.isdisjoint(package(module.__name__) for module in modules):
        return frozenset()
    for module in modules:
        for name, value in _collections_in(module):
            if _of_notebook(value):
                _collections[f"{module.__name__}:{name}"] = None
    return frozenset(_collections)


_collections: dict[str, None] = {}


_COLLECTIONS = (dict, list, set)
_PYTHONS_OWN = ("__builtins__", "__annotations__")


def _collections_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the collections of a module, and those of its own classes and objects, by name."""
    for name, value in list(vars(module).items()):
        if name in _PYTHONS_OWN:
            continue
        if type(value) in _COLLECTIONS:
            yield name, value
            continue
        for attribute, each in _attributes_of(value, module):
            if type(each) in _COLLECTIONS:
                yield f"{name}.{attribute}", each


def _attributes_of(value: Any, module: ModuleType) -> list[tuple[str, Any]]:
    """Return the attributes of a class or object of a module's own."""
    is_class = issubclass(type(value), type)
    with suppress(Exception):  # it has slots, or looks something up that is not there
        if (value if is_class else type(value)).__module__ == module.__name__:
            of = vars(value) if is_class else object.__getattribute__(value, "__dict__")
            return [*of.items()]
    return []


_LATEST = 100  # objects of a collection that are looked at: it may be a large one of something else


def _of_notebook(value: Any) -> dict[Any, Any] | list[Any]:
    """Return the latest classes and functions of the notebook in a collection."""
    if type(value) is dict:
        pairs = [*islice(reversed(value.items()), _LATEST)]
        return {key: each for key, each in reversed(pairs) if _is_of_notebook(each)}
    latest = value[-_LATEST:] if type(value) is list else islice(value, _LATEST)
    return [each for each in latest if _is_of_notebook(each)]


def _is_of_notebook(value: Any) -> bool:
    is_one = issubclass(type(value), (type, FunctionType))
    return is_one and value.__module__ == "__main__"


def users_modules() -> list[ModuleType]:
    """Return the user's own modules that this process has imported, without its program."""
    global _own_modules
    if _own_modules[0] != _imported():
        # Names of a program, which has a file too, travel by themselves.
        others = [each for name, each in list(sys.modules.items()) if name not in PROGRAMS]
        modules = [each for each in others if isinstance(each, ModuleType)]
        _own_modules = _imported(), [each for each in modules if user_source_file(each)]
    return _own_modules[1]


def _imported() -> _Imported:
    return len(sys.modules), next(reversed(sys.modules))


def values() -> dict[str, Any]:
    """Return the values of what was noted, by full name."""
    found: dict[str, Any] = {}
    _noted.update(dict.fromkeys(_data_of(_some_of)))
    for name in {**_collections, **_noted}:
        with suppress(ImportError, AttributeError, KeyError):  # it is there no longer
            holder, attribute = place(name)
            value = vars(holder)[attribute]
            if name not in _noted:
                value = Collected(_of_notebook(value))
            found[name] = AS_IMPORTED if _is_of_module(name, value) else value
    return found


class _AsImported:
    """Stands for what a module itself has: the notebook has set it again, after something else."""

    def __reduce__(self) -> str:
        return "AS_IMPORTED"


AS_IMPORTED = _AsImported()


def _is_of_module(name: str, value: Any) -> bool:
    # It is pickled as its name, which ranks have something else under.
    return isinstance(value, FunctionType) and f"{value.__module__}:{value.__qualname__}" == name


def package(name: str) -> str:
    """Return the top-level package that a module or an attribute is in, by its full name."""
    return module_of(name).partition(".")[0]


def module_of(name: str) -> str:
    """Return the module that an attribute is in, by its full name."""
    return name.partition(":")[0]


def place(name: str) -> tuple[Any, str]:
    """Return what an attribute is one of, and its own name there."""
    module, _, path = name.partition(":")
    holder, _, attribute = path.rpartition(".")
    of_module = None if holder else sys.modules.get(module)  # which is found faster
    return of_module or pkgutil.resolve_name(f"{module}:{holder}"), attribute


def _full_name(target: str, namespace: Mapping[str, Any]) -> str | None:
    root, *path = target.split(".")
    holder, value = None, namespace.get(root)
    while path and isinstance(value, (ModuleType, type)):
        name = path.pop(0)
        holder, value = value, vars(value).get(name)
    if holder is None or not _counts(holder, value, is_all=not path):
        return None
    if isinstance(holder, ModuleType):
        return f"{holder.__name__}:{name}"
    within = holder.__qualname__
    return None if "<" in within else f"{holder.__module__}:{within}.{name}"


def _counts(holder: ModuleType | type, value: Any, *, is_all: bool) -> bool:
    """Return whether what was set is the user's: a part of their module, or put into another."""
    name = holder.__module__ if isinstance(holder, type) else holder.__name__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    if user_source_file(module):
        return True
    is_patch = is_all and isinstance(value, FunctionType) and value.__module__ == "__main__"
    return is_patch and name.partition(".")[0] not in sys.stdlib_module_names
