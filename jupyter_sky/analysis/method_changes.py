"""Which objects a method changes, and which of their parts, as far as its source tells.

``losses.reset()`` sets what the losses' class says in ``reset``: `self.total = 0`, say.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any

from jupyter_sky.analysis.object_changes import ObjectChange, leaves, sure_changes


def changes_by(
    method: str, obj: Any, counts: Callable[[str], bool]
) -> Iterator[tuple[Any, str | None]]:
    """Yield what a call of a method changes whenever it runs to its end.

    Parameters
    ----------
    method
        The method's name.
    obj
        The object that it belongs to, after the call.
    counts
        Returns for a file whether the code in it is looked at.

    Yields
    ------
    object, str or None
        What is changed, and the part of it (`ObjectChange.part`).
    """
    function = inspect.getattr_static(type(obj), method, None)
    if isinstance(function, FunctionType) and counts(function.__code__.co_filename):
        own, changes = _changes_in(function.__code__)
        for change in changes:
            if change.name == own:
                yield from ((each, change.part) for each in change.objects_in({own: obj}))


@lru_cache(maxsize=256)
def _changes_in(code: CodeType) -> tuple[str, tuple[ObjectChange, ...]]:
    """Return what a method calls its object, and what it surely changes."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):  # it has no source, or is part of a statement
        return "", ()
    match tree.body:
        # What a decorator makes of it is not known.
        case [ast.FunctionDef(decorator_list=[], args=arguments, body=body)] if code.co_argcount:
            first = [*arguments.posonlyargs, *arguments.args][0]
            sure = takewhile(lambda statement: not leaves(statement), body)
            return first.arg, tuple(sure_changes(sure))
    return "", ()
