"""Pickles a call; an argument that cannot be sent is named as the function names it."""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Iterable, Iterator
from inspect import Parameter
from types import MethodType
from typing import Any

from jupyter_sky.api.call import Decorate
from jupyter_sky.api.compute import PendingCompute, PendingGroup
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.reducers.memory_maps import copied_unless_seen


def pickle_call(
    pending: PendingCompute[Any],
    cluster: Cluster,
    decorators: Iterable[Decorate],
    streams: bool = False,
    shown: str = "",
) -> Pickled:
    """Pickle a call for a rank.

    Parameters
    ----------
    cluster
        The cluster of the rank.
    decorators, streams
        As for `PendingCompute.call`.
    shown
        What identifies the call for the user; by default, the name of the function.

    Raises
    ------
    UsageError
        If it cannot be pickled, or has another call in the place of its result.
    """
    for value in (*pending.args, *pending.kwargs.values()):
        _check_value(value, pending.function.__name__)
    shown = shown or pending.function.__name__
    try:
        with copied_unless_seen(cluster.sync.shares_files):
            return pickling.dump(pending.call(decorators, streams), f"the call of {shown}")
    except UsageError:
        for name, value in _arguments(pending):
            pickling.dump(value, name, used_by=shown)
        raise


def _check_value(value: object, function: str) -> None:
    """Refuse a call as an argument, which other tools replace by its result."""
    if isinstance(value, PendingCompute | PendingGroup):
        inner = f"{value.function.__name__}(…)" if isinstance(value, PendingCompute) else "(…)"
        raise UsageError(
            f"an argument of {function} is a call that has not run: send it before, as in "
            f"`{function}({inner} >> pool)`."
        )
    if isinstance(value, concurrent.futures.Future):
        raise UsageError(
            f"an argument of {function} is a future, which stays in this process: pass its value, "
            f"as in `{function}(future.result())`."
        )


def _arguments(pending: PendingCompute[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments as the function names them, if they are what it takes."""
    function = pending.function.local_function
    if isinstance(function, MethodType):
        yield "self", function.__self__
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*pending.args, **pending.kwargs).arguments
    except (TypeError, ValueError):
        return
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{index}]", each) for index, each in enumerate(value))
        elif kind is Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value
