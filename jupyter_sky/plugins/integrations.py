"""Decorators that prepare a framework around one function: ``@sky.integrations.torch``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast, overload

from jupyter_sky.api.compute import ComputeFunction
from jupyter_sky.api.instance import instance_info
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins.torch_group.agreement import Backend
from jupyter_sky.plugins.torch_group.formation import check_backend, is_formed, process_group
from jupyter_sky.transport.tasks import delegating

F = TypeVar("F", bound=Callable[..., Any])


@overload
def torch(function: F, /) -> F: ...


@overload
def torch(*, backend: Backend | None = ..., deadline: float = ...) -> Callable[[F], F]: ...


def torch(
    function: Any = None, /, *, backend: Backend | None = None, deadline: float = 60.0
) -> Any:
    """Form torch's process group on the ranks while a function runs.

    The decorator goes below ``@sky.compute``. If the torch plugin has already formed a group, the
    function uses that one; outside a cluster, and on a single rank, there is none.

    The group spans all ranks, so that the function is to be called by ``@``: a single call, as by
    ``>>``, would wait for the others.

    Parameters
    ----------
    backend
        ``"nccl"`` or ``"gloo"``; ``None`` for NCCL if each rank has a GPU, with gloo for tensors on
        the processor, and gloo otherwise. Groups of ``dist.new_group()`` have NCCL alone.
    deadline
        Seconds to wait for all ranks when the process group is formed.

    Examples
    --------
    >>> @sky.compute
    ... @sky.integrations.torch
    ... def train(): ...
    """
    check_backend(backend)

    @contextmanager
    def grouped() -> Iterator[None]:
        info = instance_info()
        if info is None or is_formed():
            yield
        else:
            with process_group(info, backend, deadline):
                yield

    def decorate(function: F) -> F:
        if isinstance(function, ComputeFunction):
            raise UsageError("@sky.integrations.torch goes below @sky.compute: swap the two lines.")
        if not callable(function):
            raise UsageError(f"@sky.integrations.torch goes above a function, not {function!r}.")
        return _inside(function, grouped)

    return decorate if function is None else decorate(function)


def _inside(function: F, context: Callable[[], AbstractContextManager[None]]) -> F:
    """Wrap a function of any kind in one of the same kind that runs inside a context."""
    wrapper: Callable[..., Any]

    if inspect.isasyncgenfunction(function):
        wrapper = delegating(function, context)

    elif inspect.iscoroutinefunction(function):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with context():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with context():
                return (yield from function(*args, **kwargs))

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

    return cast("F", functools.wraps(function)(wrapper))
