"""Decorators that keep the output of some ranks out of the notebook.

Silenced output is not lost. On a rank, JUPYTER_SKY_LOG_FD is a file descriptor whose bytes go to
the rank's log only, and while a silenced function runs, descriptor 1 or 2 is a copy of it: what C
code and subprocesses print goes there as well. In a process without that variable nothing is
silenced.

A file descriptor belongs to the whole process. What another thread prints while a silenced function
runs is silenced with it; generators and coroutines are silenced only while they are the ones
that run.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar, cast

from jupyter_sky.api.compute import ComputeFunction
from jupyter_sky.api.instance import InstanceInfo, instance_info
from jupyter_sky.errors import UsageError
from jupyter_sky.transport.tasks import delegating

F = TypeVar("F", bound=Callable[..., Any])
Only = Literal["head"] | Callable[[InstanceInfo], bool]


def stdout(*function: Any, only: Only | None = None) -> Callable[[F], F]:
    """Let only some ranks write to their standard output.

    Parameters
    ----------
    only
        ``"head"``, or a function that is given the `InstanceInfo` and says whether it may print.

    Examples
    --------
    >>> @sky.compute
    ... @sky.stdout(only="head")
    ... def train(): ...
    """
    return _decorator("stdout", (1,), function, only)


def stderr(*function: Any, only: Only | None = None) -> Callable[[F], F]:
    """Let only some ranks write to their standard error; see `stdout`."""
    return _decorator("stderr", (2,), function, only)


def silent(function: F) -> F:
    """Keep the output and errors that a function writes out of the notebook, on every rank."""
    return _quietly(_checked("silent", function), lambda: (1, 2))


def _decorator(
    name: str, descriptors: tuple[int, ...], function: tuple[Any, ...], only: Any
) -> Callable[[F], F]:
    if function or only is None:
        raise UsageError(f'@sky.{name} needs to know who prints: write @sky.{name}(only="head").')
    if only != "head" and not callable(only):
        raise UsageError(
            f'{name}(only={only!r}) names nobody: write only="head", or a function of the '
            "instance like only=lambda info: info.node < 2."
        )

    def silenced() -> tuple[int, ...]:
        info = instance_info()
        speaks = info is None or (info.is_head if only == "head" else only(info))
        return () if speaks else descriptors

    return lambda function: _quietly(_checked(name, function), silenced)


def _checked(name: str, function: F) -> F:
    if not callable(function):
        raise UsageError(f"@sky.{name} goes above a function, not {type(function).__name__}.")
    if isinstance(function, ComputeFunction):
        raise UsageError(f"@sky.{name} goes below @sky.compute: swap the two lines.")
    return function


# Around a function, or around each step of one that pauses


def _quietly(fn: F, silenced: Callable[[], tuple[int, ...]]) -> F:
    """Wrap a function of any kind in one of that kind; `silenced` returns file descriptors."""
    wrapper: Callable[..., Any]

    if inspect.isasyncgenfunction(fn):
        wrapper = delegating(fn, around=lambda step: _Steps(step, silenced()))

    elif inspect.iscoroutinefunction(fn):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await _Steps(fn(*args, **kwargs), silenced())

    elif inspect.isgeneratorfunction(fn):

        def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _Steps(fn(*args, **kwargs), silenced()))

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return _call(silenced(), fn, *args, **kwargs)

    return cast(F, functools.wraps(fn)(wrapper))


class _Steps(Generator[Any, Any, Any]):
    """A generator or an awaitable, silenced in each of its steps.

    Between two steps the caller runs, and the caller may print.
    """

    def __init__(self, steps: Any, silenced: tuple[int, ...]) -> None:
        self._steps = steps.__await__() if hasattr(steps, "__await__") else steps
        self._silenced = silenced

    def send(self, value: Any) -> Any:
        return _call(self._silenced, self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return _call(self._silenced, self._steps.throw, *error)

    def close(self) -> None:
        _call(self._silenced, self._steps.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self


# The file descriptors


class _Silencer:
    """Points one file descriptor at the rank's log while any silenced call is running.

    Silenced calls nest, and with threads and coroutines they overlap in any order: the first to
    enter redirects the descriptor, the last to leave restores it. Both can be repeated, since Stop
    may have interrupted the first attempt anywhere.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._original: int | None = None

    def enter(self, call: object, log: int) -> None:
        with self._lock:
            self._inside.add(call)
            if self._original is None:
                _flush()
                self._original = os.dup(self._descriptor)
                os.dup2(log, self._descriptor)

    def leave(self, call: object) -> None:
        with self._lock:
            self._inside.discard(call)
            if not self._inside and self._original is not None:
                _flush()
                original = self._original
                os.dup2(original, self._descriptor)
                self._original = None
                os.close(original)


_silencers = {1: _Silencer(1), 2: _Silencer(2)}


def _call(
    descriptors: tuple[int, ...], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function while file descriptors are silenced.

    Not a context manager: Stop between its `__enter__` and the block would leave the rank silent.
    """
    log = _log()
    if log is None:
        return function(*args, **kwargs)
    call = object()
    silencers = [_silencers[descriptor] for descriptor in descriptors]
    try:
        for silencer in silencers:
            silencer.enter(call, log)
        return function(*args, **kwargs)
    finally:
        try:
            for silencer in silencers:
                silencer.leave(call)
        except BaseException:
            for silencer in silencers:
                silencer.leave(call)
            raise


def _log() -> int | None:
    """Return the descriptor of the rank's log, if this process is a rank."""
    try:
        descriptor = int(os.environ["JUPYTER_SKY_LOG_FD"])
        os.fstat(descriptor)  # a program started by the rank has the variable, not the descriptor
    except (KeyError, ValueError, OSError):
        return None
    return descriptor


def _flush() -> None:
    """Write out what was printed before the descriptor changes: Python's buffers, then C's."""
    import ctypes

    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
