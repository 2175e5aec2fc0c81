"""Names in texts that are evaluated: ``df.query("age > @limit")`` and ``exec("b = a + 1")``.

Where a text is put together, or has a name, its parts may be anywhere in the cell. Where any word
may be a column, as in ``df.eval("a + b")``, only names after ``@`` are found: others may stand for
something large in the notebook that has nothing to do with it.
"""

from __future__ import annotations

import ast
import dis
import re
import symtable
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from types import CodeType

from jupyter_sky.analysis.ipython_syntax import Embedded
from jupyter_sky.analysis.program_symbols import program_symbols

_FUNCTIONS = {"query", "eval"}
_NAME = re.compile(r"@([^\W\d]\w*)")
_EXPRESSIONS = {("pd", "eval"), ("pandas", "eval"), ("ne", "evaluate"), ("numexpr", "evaluate")}
_SQL = {
    *(("duckdb", method) for method in ("sql", "query", "execute")),
    *((name, "sql") for name in ("con", "conn", "pl", "polars")),
}
"""DuckDB, its connections as they are usually named, and Polars find tables among names."""

_PROGRAMS = {"exec", "eval"}
_METHODS = {method for _, method in _EXPRESSIONS | _SQL}
_JOINS = "join|inner|left|right|full|outer|cross|natural|semi|anti|asof|positional"
_TABLE = rf"[^\W\d]\w*(?:\s+(?:as\s+)?(?!(?:{_JOINS})\b)\w+)?"
_IS_SQL = re.compile(
    r"\s*(?:select|with|from|insert|create|copy|describe|summarize|pivot|show)\b", re.IGNORECASE
)
_TABLES = re.compile(rf"\b(?:from|join)\s+({_TABLE}(?:\s*,\s*{_TABLE})*)", re.IGNORECASE)


def put_query_names(nodes: Sequence[ast.AST]) -> bool:
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
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=method)) if (
                function := (of, method)
            ) in _EXPRESSIONS | _SQL:
                if function in _SQL:
                    # Not in what is printed, or says what a function does.
                    _put_names(call, _tables_in, [*filter(_IS_SQL.match, _texts_in(nodes))])
                else:
                    _put_names(call, _read_by, ())
                is_changed = True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FUNCTIONS:
                _put_names(call, _NAME.findall, [*_texts_in(nodes)])
                is_changed = True
    return is_changed


@lru_cache(maxsize=2048)  # a function is looked at for each cell that needs it
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
    if not {*code.co_names, *own}.isdisjoint(_PROGRAMS | _METHODS):
        programs, queries = _evaluated(code)
        found.update(*map(_read_by, programs))
        if queries is not None:
            found.update(*map(_tables_in, [*queries, *filter(_IS_SQL.match, texts)]))
    inner = [named_in_queries(each) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found.union(*inner) - own)


def _tables_in(query: str) -> list[str]:
    tables = [each for found in _TABLES.findall(query) for each in found.split(",")]
    return [each.split()[0] for each in tables]


def _evaluated(code: CodeType) -> tuple[list[str], list[str] | None]:
    """Return the texts in a function that are evaluated and of which any word may be a name.

    Returns
    -------
    list of str, list of str or None
        Programs, and queries in SQL. These may be in other texts, too, unless it is ``None``.
    """
    programs: list[str] = []
    queries: list[str] | None = None
    of, found = "", None
    for each in dis.get_instructions(code):
        if each.opname.startswith(("LOAD_GLOBAL", "LOAD_FAST", "LOAD_NAME")):
            of, found = each.argval, programs if each.argval in _PROGRAMS else None
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found = programs if (of, each.argval) in _EXPRESSIONS else None
            if (of, each.argval) in _SQL:
                found = queries = queries or []
        elif found is not None and each.opname == "LOAD_CONST" and isinstance(each.argval, str):
            found.append(each.argval)
    return programs, queries


def _put_names(call: ast.Call, find: Callable[[str], list[str]], elsewhere: Sequence[str]) -> None:
    """Put names into the arguments of a call.

    Parameters
    ----------
    call
        The call.
    find
        Finds the names in a text.
    elsewhere
        Texts that may be parts of an argument that is not a mere text.
    """
    call.args = [_named(each, find, elsewhere) for each in call.args]
    for keyword in call.keywords:
        keyword.value = _named(keyword.value, find, elsewhere)


def _named(
    argument: ast.expr, find: Callable[[str], list[str]], elsewhere: Sequence[str]
) -> ast.expr:
    texts = _texts_in([argument]) if isinstance(argument, ast.Constant) else elsewhere
    found = [name for text in texts for name in find(text)]
    names: list[ast.AST] = [ast.Name(name, ast.Load()) for name in found]
    return Embedded([*names, argument]) if names else argument


def _texts_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for each in nodes:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _read_by(text: str, mode: str = "exec") -> list[str]:
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
