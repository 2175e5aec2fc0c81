"""The names that a running cell has surely bound, as far as its syntax tells.

What is before a place in the same block, or in a block around it, has run whenever that place is
reached. Of what is in a loop it is not known in which pass it was, so it has to be known as well
that a new one has begun.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import takewhile

from jupyter_sky.analysis.cell_names import surely_bound
from jupyter_sky.analysis.ipython_syntax import nodes_of

Span = tuple[int, int, int, int]
"""Where code stands: its first line and column, and its last."""

_Place = tuple[int, int]
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound_so_far(
    code: str, now: Span, last: Span | None, changed: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a cell has bound since it last was at a call, and will still bind.

    Parameters
    ----------
    code
        The cell, as plain Python.
    now, last
        What calls in it now, and what has called last; ``None`` for the first call.
    changed
        The names that are bound to another object since.

    Raises
    ------
    SyntaxError
        The cell does not compile.
    LookupError
        There is no such code in it.
    """
    tree = ast.parse(code)
    path = _path(tree.body, now[:2])
    if not path or not any(_span(each) == now for each in nodes_of(path[-1][0])):
        raise LookupError(f"line {now[0]}")
    since = (0, 0) if last is None else _since(tree, path, now, last, changed)
    ran = [each for _, before in path for each in before if _start(each) > since]
    return surely_bound(ran), surely_bound(tree.body[len(path[0][1]) + 1 :])


def _since(
    tree: ast.Module,
    path: Sequence[tuple[ast.stmt, list[ast.stmt]]],
    now: Span,
    last: Span,
    changed: Collection[str],
) -> _Place:
    """Return a place after which all that is in the path has run since the last call."""
    loops = [each for each, _ in path if isinstance(each, _LOOPS) and _contains(each, last[:2])]
    binders = Counter(_bound_names(tree))
    for loop in loops:
        targets = [] if isinstance(loop, ast.While) else _bound_names(loop.target)
        if any(binders[name] == 1 and name in changed for name in targets):
            return _start(loop)
    if now[:2] > last[:2]:
        return last[:2]
    # A statement that has called last may do so again, as `with` does at its end.
    calling = path[-1][0]
    if loops and (not _contains(calling, last[:2]) or (now == last and _is_run(calling, now))):
        return _start(loops[-1])
    return now[:2]  # it may still be the same pass


def _is_run(statement: ast.stmt, span: Span) -> bool:
    """Return whether a call is of a cell's magic, and made once whenever the statement runs."""
    match statement:
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            is_magic = isinstance(call.func, ast.Attribute) and call.func.attr == "run_cell_magic"
            return is_magic and _span(call) == span
    return False


def _path(block: Sequence[ast.stmt], place: _Place) -> list[tuple[ast.stmt, list[ast.stmt]]]:
    """Return the statements around a place, each with those before it in its block."""
    before = list(takewhile(lambda each: not _contains(each, place), block))
    if len(before) == len(block):
        return []
    found = block[len(before)]
    inner = [] if isinstance(found, _SCOPES) else _blocks(found)
    return [(found, before), *next(filter(None, (_path(each, place) for each in inner)), [])]


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    parts = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
    names = ("body", "orelse", "finalbody")
    return [getattr(part, name, []) for part in parts for name in names]


def _bound_names(tree: ast.AST) -> list[str]:
    nodes = nodes_of(tree)
    return [each.id for each in nodes if isinstance(each, ast.Name) and _is_stored(each)]


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _contains(node: ast.stmt, place: _Place) -> bool:
    return _start(node) <= place < _end(node)


def _span(node: ast.AST) -> Span | None:
    return (*_start(node), *_end(node)) if isinstance(node, ast.stmt | ast.expr) else None


def _start(node: ast.stmt | ast.expr) -> _Place:
    return node.lineno, node.col_offset


def _end(node: ast.stmt | ast.expr) -> _Place:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
