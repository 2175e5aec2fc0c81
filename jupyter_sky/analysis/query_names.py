"""Names in texts that are evaluated: ``df.query("age > @limit")`` and ``exec("b = a + 1")``."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType

from jupyter_sky.analysis.ipython_syntax import Embedded
from jupyter_sky.analysis.program_symbols import program_symbols

_FUNCTIONS = {"query", "eval"}
_NAME = re.compile(r"@([^\W\d]\w*)")


def put_query_names(nodes: Iterable[ast.AST]) -> bool:
    """Put the names that such texts read in their place; nobody compiles the tree.

    Parameters
    ----------
    nodes
        The nodes of a tree.

    Returns
    -------
    bool
        Whether there are any, so that the tree has other nodes now.
    """
    is_changed = False
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        match call:
            case ast.Call(
                func=ast.Name(id="exec" | "eval" as mode),
                args=[ast.Constant(value=str(text))],
                keywords=[],
            ) if names := _read_by(text, mode):
                call.args = [Embedded([ast.Name(name, ast.Load()) for name in names])]
                is_changed = True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FUNCTIONS:
                call.args = [_named(each) for each in call.args]
                for keyword in call.keywords:
                    keyword.value = _named(keyword.value)
                is_changed = True
    return is_changed


def named_in_queries(code: CodeType) -> frozenset[str]:
    """Return the global names that a function's queries read, such as ``df.query("age > @limit")``.

    Parameters
    ----------
    code
        The function's code.
    """
    found: set[str] = set()
    texts = [each for each in code.co_consts if isinstance(each, str)]
    if not _FUNCTIONS.isdisjoint(code.co_names):
        found.update(*map(_NAME.findall, texts))
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    inner = [named_in_queries(each) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found.union(*inner) - own)


def _named(argument: ast.expr) -> ast.expr:
    text = argument.value if isinstance(argument, ast.Constant) else None
    names = _NAME.findall(text) if isinstance(text, str) else []
    return Embedded([ast.Name(name, ast.Load()) for name in names]) if names else argument


def _read_by(text: str, mode: str) -> list[str]:
    """Return the global names that a program or an expression reads."""
    with suppress(SyntaxError, ValueError):
        symbols, parts = program_symbols(text.strip(), mode)
        here = {each.get_name() for each in symbols if each.is_referenced()}
        return sorted(here.union(*map(_globals_in, parts)))
    return []


def _globals_in(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_in(child)
