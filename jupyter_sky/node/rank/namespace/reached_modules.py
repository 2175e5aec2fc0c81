"""Which modules of the user's a cell may run code of, as far as can be seen before it runs.

That is so if it imports or names the module, or a function, class or object of it, or anything that
uses these in turn.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import analyse


def reached(
    cell: str, namespace: Mapping[str, Any], modules: Collection[str], own: Collection[str]
) -> str | None:
    """Return the first of some modules of which a cell may run code; ``None`` if it runs of none.

    Parameters
    ----------
    cell
        The cell as typed.
    namespace
        The user's namespace.
    modules
        The full names of the modules.
    own
        The full names of all modules of the user's. No other module uses these.
    """
    try:
        names = analyse(cell)
    except SyntaxError:  # it runs nothing at all
        return None
    packages = {name.partition(".")[0] for name in ("__main__", *own)}
    waiting: list[Any] = [namespace.get(name) for name in names.reads | names.all_deferred_reads]
    waiting += map(_Imported, names.modules)
    # With the objects, so that no other one gets their id. The shell leads to all names.
    seen: dict[int, Any] = {id(namespace): namespace}
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        kind = type(value)  # what it says of its class itself may be code of the user's
        if kind is _Imported:
            if value in modules:
                return str(value)
            waiting += (sys.modules.get(value), *map(_Imported, _packages_of(value)))
        elif issubclass(kind, (ModuleType, type, FunctionType)):
            home = str(value.__name__ if issubclass(kind, ModuleType) else value.__module__)
            if home in modules:
                return home
            waiting += _held_by(value)
            if home.partition(".")[0] in packages and vars(value) is not namespace:
                waiting += _used_by(value)
        else:
            waiting.append(kind)
            waiting += [each for each in gc.get_referents(value) if gc.is_tracked(each)]
    return None


class _Imported(str):
    """The name of a module that code may import."""

    __slots__ = ()


def _packages_of(module: str) -> Iterator[str]:
    """Yield the packages that Python imports before a module in them."""
    while module := module.rpartition(".")[0]:
        yield module


def _held_by(value: ModuleType | type | FunctionType) -> Iterator[Any]:
    """Yield what a class or function may use of others if a library has made it.

    As for a decorator's function, or the class of a model that is sharded.
    """
    if isinstance(value, FunctionType):
        yield from (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
    elif isinstance(value, type):
        yield from value.__mro__


def _used_by(value: ModuleType | type | FunctionType) -> Iterator[Any]:
    """Yield what else a module, class or function of the user's may use."""
    if isinstance(value, FunctionType):
        for code in _codes(value.__code__):
            yield from (value.__globals__.get(name) for name in code.co_names)
            yield from _imports(code, value.__globals__.get("__package__") or "")
    else:  # not the builtins, which each module has
        yield from [each for name, each in vars(value).items() if name != "__builtins__"]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _imports(code: CodeType, package: str) -> Iterator[_Imported]:
    parts = package.split(".")
    packages = ["", *(".".join(parts[: count + 1]) + "." for count in range(len(parts)))]
    for each in dis.get_instructions(code) if code.co_names else ():
        if each.opname in ("IMPORT_NAME", "IMPORT_FROM"):  # which may be relative to any of these
            yield from (_Imported(above + each.argval) for above in packages)
