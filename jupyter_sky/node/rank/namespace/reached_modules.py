"""Which modules of the user's a cell may run code of, as far as can be seen before it runs.

That is so if it imports or names the module, or a function, class or object of it, or anything that
uses these in turn.
"""

from __future__ import annotations

import ast
import dis
import gc
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.analysis.ipython_syntax import nodes_of, parse


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
    nodes = nodes_of(parse(cell))
    waiting: list[Any] = [namespace.get(name) for name in names.reads | names.all_deferred_reads]
    imported = [*names.modules]
    if any(getattr(node, field, "") in _IMPORTERS for node in nodes for field in _NAMES):
        texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
        imported += _names_of_modules([*texts, *waiting])
    waiting += map(_Imported, imported)
    # With the objects, so that no other one gets their id. The shell leads to all names.
    seen: dict[int | str, Any] = {id(namespace): namespace}
    while waiting:
        value = waiting.pop()
        kind = type(value)  # what it says of its class itself may be code of the user's
        key = str(value) if kind is _Imported else id(value)
        if key in seen:
            continue
        seen[key] = value
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


_IMPORT = dis.opmap["IMPORT_NAME"]
_IMPORTERS = {"import_module", "__import__"}
"""Functions that import what a text names."""
_NAMES = ("id", "attr", "name")
"""Where nodes of Python have a name: of a variable, an attribute, or what is imported."""


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
            yield from _imports(code, value.__globals__)
    else:  # not the builtins, which each module has
        yield from [each for name, each in vars(value).items() if name != "__builtins__"]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _imports(code: CodeType, scope: Mapping[str, Any]) -> Iterator[_Imported]:
    found: list[str] = []
    # Most code imports nothing, and its instructions take long to decode: each begins at 2 bytes.
    if _IMPORT in code.co_code[::2]:
        names = ("IMPORT_NAME", "IMPORT_FROM")
        found += [each.argval for each in dis.get_instructions(code) if each.opname in names]
    if not _IMPORTERS.isdisjoint(code.co_names):
        found += _names_of_modules([*code.co_consts, *map(scope.get, code.co_names)])
    parts = (scope.get("__package__") or "").split(".")
    packages = ["", *(".".join(parts[: count + 1]) + "." for count in range(len(parts)))]
    for each in found:  # which may be relative to any of these
        yield from (_Imported(above + each) for above in packages)


def _names_of_modules(values: Iterable[Any]) -> Iterator[str]:
    """Yield the texts among values that may be names of modules, without dots before them."""
    for each in values:
        if type(each) is str and each.lstrip(".").replace(".", "_").isidentifier():
            yield each.lstrip(".")
