"""What a cell changes in place, also in functions and methods of the user's that it calls.

``losses.reset()`` sets what the losses' class says in ``reset``: `self.total = 0`, say, and
``restart(counts)`` what the function's source says of its parameter, and of names of its module.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any

from jupyter_sky.analysis.labels import attribute_of
from jupyter_sky.analysis.object_changes import FunctionCall, ObjectChange, leaves, sure_changes
from jupyter_sky.analysis.object_places import Lookup, ObjectPlace

_MOST_CALLERS = 8
_NEVER_RUN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def changed_objects(
    changes: Iterable[ObjectChange | FunctionCall],
    namespace: Mapping[str, Any],
    counts: Callable[[str], bool],
) -> Iterator[tuple[Any, str | None]]:
    """Yield what a cell has changed that ran to its end.

    Parameters
    ----------
    changes
        What it surely changes and calls.
    namespace
        Its namespace, at its end.
    counts
        Returns for a file whether the functions in it are looked at.

    Yields
    ------
    object, str or None
        What is changed, and the part of it (`ObjectChange.part`).
    """
    return _changed(changes, lambda name: _found(name, namespace), counts, True, frozenset())


def _changed(
    changes: Iterable[ObjectChange | FunctionCall],
    lookup: Lookup,
    counts: Callable[[str], bool],
    is_sure: bool,
    callers: frozenset[CodeType],
) -> Iterator[tuple[Any, str | None]]:
    for change in changes:
        if isinstance(change, ObjectChange):
            yield from ((each, change.part) for each in change.place.objects_in(lookup))
            continue
        for function, arguments in _functions(change, lookup):
            code = function.__code__
            if code in callers or len(callers) == _MOST_CALLERS or not counts(code.co_filename):
                continue
            is_run = is_sure and not change.is_in_loop
            inside, rebound = _changes_in(code)
            inner = _lookup_in(function, arguments, rebound, is_run)
            yield from _changed(inside, inner, counts, is_run, callers | {code})


def _functions(
    call: FunctionCall, lookup: Lookup
) -> Iterator[tuple[FunctionType, Mapping[int | str, Sequence[Any]]]]:
    """Yield the functions that are called, with the objects that each of their arguments may be."""
    arguments = {key: place.objects_in(lookup) for key, place in call.arguments}
    for function in call.function.objects_in(lookup):
        if isinstance(function, FunctionType):
            yield function, arguments
    if call.function.steps and (method := attribute_of(call.function.steps[-1])):
        after_self = {key + 1 if isinstance(key, int) else key: arguments[key] for key in arguments}
        for obj in ObjectPlace(call.function.name, call.function.steps[:-1]).objects_in(lookup):
            function = inspect.getattr_static(type(obj), method, None)
            if isinstance(function, FunctionType):
                yield function, {**after_self, 0: [obj]}


def _lookup_in(
    function: FunctionType,
    arguments: Mapping[int | str, Sequence[Any]],
    rebound: frozenset[str],
    is_run: bool,
) -> Lookup:
    """Return what names mean in a function that was called.

    Parameters
    ----------
    function
        The function.
    arguments
        What may have been its arguments, by position or name.
    rebound
        The names that it binds: as parameters, they are not its arguments any more.
    is_run
        Whether it was surely called; else it has changed its arguments, if there were any, alone.
    """
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def lookup(name: str) -> Sequence[Any]:
        if name in code.co_varnames or name in code.co_cellvars:
            if name not in parameters or name in rebound:
                return ()
            place = positional.index(name) if name in positional else name
            return arguments.get(name) or arguments.get(place, ())
        if not is_run:
            return ()
        if name in code.co_freevars:
            cell = (function.__closure__ or ())[code.co_freevars.index(name)]
            with suppress(ValueError):  # it is empty
                return (cell.cell_contents,)
            return ()
        return _found(name, function.__globals__)

    return lookup


def _found(name: str, namespace: Mapping[str, Any]) -> Sequence[Any]:
    return (namespace[name],) if name in namespace else ()


@lru_cache(maxsize=256)
def _changes_in(code: CodeType) -> tuple[Sequence[ObjectChange | FunctionCall], frozenset[str]]:
    """Return what a function surely changes and calls, and the names that it binds."""
    if code.co_flags & _NEVER_RUN:  # a call alone runs nothing of it
        return (), frozenset()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):  # it has no source, or is part of a statement
        return (), frozenset()
    match tree.body:
        # What a decorator makes of it is not known.
        case [ast.FunctionDef(decorator_list=[], body=body)]:
            sure = takewhile(lambda statement: not leaves(statement), body)
            names = (each for each in ast.walk(tree) if isinstance(each, ast.Name))
            bound = (each.id for each in names if not isinstance(each.ctx, ast.Load))
            return tuple(sure_changes(sure)), frozenset(bound)
    return (), frozenset()
