"""Modules in a pickle: by name, with their submodules that were imported.

``import xml.sax`` binds only ``xml``, and pickle writes only that name: the receiver would not find
``xml.sax``. So the pickle also names the submodules that code reaches through a module.

Some modules have a class of their own, as ``torch.backends.cudnn`` does. Pickle treats them like
any object, and would copy their content or refuse to.
"""

from __future__ import annotations

import dis
import enum
import importlib
import pkgutil
import sys
import types
import weakref
from collections.abc import Collection
from types import CodeType, ModuleType
from typing import Any, Protocol, TypeGuard


class ModuleReference:
    """Is pickled in place of a module, and loaded as the module.

    Parameters
    ----------
    module
        The module.
    submodules
        Full names of its submodules that are imported here and should be there.
    """

    def __init__(self, module: ModuleType, submodules: Collection[str]) -> None:
        self._module = module
        self._submodules = sorted(submodules)

    def __reduce__(self) -> Any:
        # Pickle loads a module by importing it.
        return _first, (self._module, *map(importlib.import_module, self._submodules))


_LAZY: Any = getattr(types, "LazyImportType", None)  # new in Python 3.15


def is_lazy_import(value: object) -> TypeGuard[LazyImport]:
    """Return whether a value stands for what ``lazy import`` has not imported yet (PEP 810)."""
    return _LAZY is not None and type(value) is _LAZY


def imported(value: object) -> Any:
    """Return what a lazy import stands for, which imports it, and any other value as it is."""
    return value.resolve() if is_lazy_import(value) else value


class LazyImport(Protocol):
    """What a namespace contains for a name until the name is used."""

    def resolve(self) -> Any:
        """Import it."""


def module_of(obj: object) -> object:
    """Return the name of the module that an object says it is from, or else its class.

    What has ``@sky.compute``, for example, is pickled as its name in that module.
    """
    try:
        return object.__getattribute__(obj, "__module__")  # not what a proxy stands for
    except AttributeError:
        return None


def reached_submodules(module: ModuleType, attributes: Collection[str]) -> set[str]:
    """Return the imported submodules that code can reach through a module.

    Parameters
    ----------
    module
        The module.
    attributes
        The names of attributes in the code.
    """
    prefix, attributes = f"{module.__name__}.", frozenset(attributes)
    names = [*sys.modules, *getattr(sys, "lazy_modules", ())]
    return {
        name
        for name in names
        if name.startswith(prefix)
        and attributes.issuperset(name.split(".")[1:])
        and (name in sys.modules or _is_module(name))
    }


def _is_module(name: str) -> bool:
    """Return whether a name of a lazy import is that of a module, which is imported then."""
    try:
        return isinstance(pkgutil.resolve_name(name), ModuleType)
    except (ImportError, AttributeError):
        return False


def reduce_module(module: ModuleType) -> Any:
    """Reduce a module with a class of its own to its name; return `NotImplemented` for others.

    Parameters
    ----------
    module
        The module.
    """
    if type(module) is ModuleType:
        return NotImplemented
    name = module.__name__
    if sys.modules.get(name) is not module:
        # ``torch.ops.aten`` is an attribute that cannot be imported.
        owner, _, attribute = name.rpartition(".")
        if owner in sys.modules and getattr(sys.modules[owner], attribute, None) is module:
            return getattr, (sys.modules[owner], attribute)
        return NotImplemented
    return importlib.import_module, (name,)


def is_replaced_enum(kind: type) -> bool:
    """Return whether a module has been loaded again since an enum was imported from it.

    With ``%autoreload``, the notebook goes on with an enum that can be neither imported nor made
    again. Ranks have but one, whose members stay the same.
    """
    is_of_module = kind.__module__ != "__main__" and kind.__module__ in sys.modules
    if not (isinstance(kind, enum.EnumType) and is_of_module):
        return False
    try:
        now = pkgutil.resolve_name(f"{kind.__module__}:{kind.__qualname__}")
    except (ImportError, AttributeError, ValueError):
        return False
    return now is not kind and isinstance(now, enum.EnumType)


def _first(module: ModuleType, *submodules: ModuleType) -> ModuleType:
    return module


_imported: weakref.WeakKeyDictionary[CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def imported_in(code: CodeType) -> frozenset[str]:
    """Return the modules that are named by import statements in a function."""
    names = _imported.get(code)
    if names is None:
        found = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
        inner = [imported_in(each) for each in code.co_consts if isinstance(each, CodeType)]
        names = _imported[code] = frozenset(found.union(*inner))
    return names
