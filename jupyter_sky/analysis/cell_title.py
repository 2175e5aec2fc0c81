"""A title for a cell: the line by which the user recognises it in a list of runs."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from jupyter_sky.analysis.ipython_syntax import parse
from jupyter_sky.formatting import shortened

_LONGEST = 60  # characters

# Functions that prepare or report: a cell is seldom about these.
_MINOR = re.compile(r"print|display|barrier|basicConfig|.*(seed|filter|init|setup)|set_.*|use_.*")

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_BLOCKS = (ast.With, ast.AsyncWith, ast.Try, ast.If)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


@lru_cache(maxsize=256)  # a cell is run again and again
def cell_title(source: str) -> str:
    """Return a title for a cell: the comment that it begins with, or the line that it is about.

    A loop or a call is preferred to a statement that prepares it, and the longer of two alike.
    """
    lines = source.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if comment := re.match(r"#[#%\s]*(\w.*)", first):
        return shortened(comment[1], _LONGEST)
    try:
        statements = parse(source).body
    except SyntaxError:
        statements = []
    if statements:
        # Of equals the last one: it uses what the earlier ones prepare.
        chosen = max(reversed(statements), key=lambda each: (_weight(each), _length(each)))
        first = lines[chosen.lineno - 1].strip()
    return shortened(first.rstrip(":"), _LONGEST)


def shell_title(source: str) -> str:
    """Return a title for a shell text: the comment that it begins with, or its first command."""
    lines = [line.strip() for line in source.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#!", "set -", "set +"))]
    return shortened(lines[0].lstrip("# "), _LONGEST) if lines else ""


def _weight(statement: ast.stmt) -> int:
    """Return how likely it is that the cell is about this statement."""
    if isinstance(statement, _LOOPS):
        return 5
    if isinstance(statement, _BLOCKS):
        return 4
    if isinstance(statement, ast.Expr):
        return 4 if _does_work(statement.value) else 1
    if isinstance(statement, _ASSIGNMENTS):
        return 3 if _does_work(statement.value) else 1
    return 0 if isinstance(statement, ast.Import | ast.ImportFrom) else 2


def _length(statement: ast.stmt) -> int:
    return (statement.end_lineno or statement.lineno) - statement.lineno


def _does_work(value: ast.expr | None) -> bool:
    """Return whether an expression is a call, including ``train(data) @ pool``."""
    match value:
        case ast.Await(value=awaited):
            return _does_work(awaited)
        case ast.BinOp(left=left, right=right):
            return _does_work(left) or _does_work(right)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return _MINOR.fullmatch(name) is None
    return isinstance(value, ast.Call)
