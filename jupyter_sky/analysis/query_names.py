"""Names in the expressions that pandas evaluates, as in ``df.query("age > @limit")``."""

from __future__ import annotations

import ast
import re

from jupyter_sky.analysis.ipython_syntax import Embedded

_FUNCTIONS = {"query", "eval"}
_NAME = re.compile(r"@([^\W\d]\w*)")


def with_query_names(tree: ast.Module) -> ast.Module:
    """Replace such strings with the names marked by ``@``; the tree cannot be compiled then."""
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _FUNCTIONS:
                call.args = [_named(each) for each in call.args]
                for keyword in call.keywords:
                    keyword.value = _named(keyword.value)
    return tree


def _named(argument: ast.expr) -> ast.expr:
    text = argument.value if isinstance(argument, ast.Constant) else None
    names = _NAME.findall(text) if isinstance(text, str) else []
    return Embedded([ast.Name(name, ast.Load()) for name in names]) if names else argument
