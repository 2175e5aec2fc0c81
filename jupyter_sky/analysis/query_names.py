"""Names in texts that are evaluated: ``df.query("age > @limit")`` and ``exec("b = a + 1")``.

Where any word may be a column, as in ``df.eval("a + b")``, only names after ``@`` are found: others
may stand for something large in the notebook that has nothing to do with it.
"""

from __future__ import annotations

import ast
import dis
import re
import symtable
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType

from jupyter_sky.analysis.ipython_syntax import Embedded
from jupyter_sky.analysis.program_symbols import program_symbols

_FUNCTIONS = {"query", "eval"}
_NAME = re.compile(r"@([^\W\d]\w*)")
_EXPRESSIONS = {("pd", "eval"), ("pandas", "eval"), ("ne", "evaluate"), ("numexpr", "evaluate")}
_SQL = {("duckdb", "sql"), ("duckdb", "query"), ("duckdb", "execute")}
_MODULES = {module for module, _ in _EXPRESSIONS | _SQL}
_METHODS = {method for _, method in _EXPRESSIONS | _SQL}
_TABLE = r"[^\W\d]\w*(?:\s+as\s+\w+)?"
_TABLES = re.compile(rf"\b(?:from|join)\s+({_TABLE}(?:\s*,\s*{_TABLE})*)", re.IGNORECASE)


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
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=method)) if find := (
                _finder(of, method)
            ):
                _put_names(call, find)
                is_changed = True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FUNCTIONS:
                _put_names(call, _NAME.findall)
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
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    texts = [each for each in code.co_consts if isinstance(each, str)]
    if not _FUNCTIONS.isdisjoint(code.co_names):
        found.update(*map(_NAME.findall, texts))
    if not (_METHODS.isdisjoint(code.co_names) or _MODULES.isdisjoint((*code.co_names, *own))):
        found.update(*(find(text) for find, text in _evaluated(code)))
    inner = [named_in_queries(each) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found.union(*inner) - own)


def _finder(of: str, method: str) -> Callable[[str], list[str]] | None:
    """Return what finds the names in a text that a function evaluates, of which any is a name."""
    if (of, method) in _EXPRESSIONS:
        return lambda text: _read_by(text, "exec")
    return _tables_in if (of, method) in _SQL else None


def _tables_in(query: str) -> list[str]:
    tables = [each for found in _TABLES.findall(query) for each in found.split(",")]
    return [each.split()[0] for each in tables]


def _evaluated(code: CodeType) -> Iterator[tuple[Callable[[str], list[str]], str]]:
    """Yield the texts that such functions evaluate, each with what finds the names in it."""
    of, find = "", None
    for each in dis.get_instructions(code):
        if each.opname.startswith(("LOAD_GLOBAL", "LOAD_FAST")):
            of, find = each.argval, None
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            find = _finder(of, each.argval)
        elif find and each.opname == "LOAD_CONST" and isinstance(each.argval, str):
            yield find, each.argval


def _put_names(call: ast.Call, find: Callable[[str], list[str]]) -> None:
    call.args = [_named(each, find) for each in call.args]
    for keyword in call.keywords:
        keyword.value = _named(keyword.value, find)


def _named(argument: ast.expr, find: Callable[[str], list[str]]) -> ast.expr:
    text = argument.value if isinstance(argument, ast.Constant) else None
    names = find(text) if isinstance(text, str) else []
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
