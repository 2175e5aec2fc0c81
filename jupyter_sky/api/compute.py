"""Functions that run on a cluster: ``train(data) @ pool`` on every rank, ``>>`` on one."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, TypeVarTuple, cast, overload

from jupyter_sky.api.call import Call, Decorate
from jupyter_sky.api.calls.checks import (
    NotCalled,
    NotForAllRanks,
    check_limits,
    checked,
    method_of,
)
from jupyter_sky.api.future import CallFuture
from jupyter_sky.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


class Pool(Protocol):
    """The operand to the right of ``@``, ``>>`` and ``>``."""

    def broadcast(self, pending: PendingCompute[Any]) -> Any: ...

    def dispatch(self, pending: PendingCompute[R]) -> R: ...

    def begin(self, pending: PendingCompute[R]) -> CallFuture[R]: ...

    def run_group(self, group: PendingGroup[T]) -> T: ...


@overload
def compute(function: Callable[P, R], /) -> ComputeFunction[P, R]: ...


@overload
def compute(
    *, timeout: float | None = ..., retries: int | None = ...
) -> Callable[[Callable[P, R]], ComputeFunction[P, R]]: ...


def compute(
    function: Callable[..., Any] | None = None,
    /,
    *,
    timeout: float | None = None,
    retries: int | None = None,
) -> Any:
    """Turn a function into one that runs on a cluster.

    Calling it runs nothing yet: it returns a `PendingCompute` to send to a pool. The decorator must
    be the outermost one, even on methods. It is also named ``sky.function``.

    Parameters
    ----------
    function
        The function to run on the ranks of a cluster.
    timeout
        Seconds that a call may take; a longer one is stopped and raises a ``TimeoutError``.
    retries
        How often a call is retried on another rank if its rank is lost; by default once for calls
        that go to any free rank (``gather``, ``&``, ``map`` and ``>``).

    Raises
    ------
    UsageError
        If it is not a function.

    Examples
    --------
    >>> @sky.compute
    ... def train(data): ...
    >>> results = train(data) @ pool  # on every rank: a list in rank order
    >>> result = train(data) >> pool  # on one rank
    >>> future = train(data) > pool  # on one rank, without waiting for it
    >>> a, b = (train(1) & train(2)) >> pool  # each on a rank that is free
    >>> train.local(data)  # here, as if it were not decorated

    Values of a generator arrive as they are yielded; from all ranks, with the rank's number.
    Iterators among the arguments are fed to the rank on demand; with ``@``, each rank gets all
    items.

    >>> for loss in steps() >> pool: ...
    >>> for rank, loss in steps() @ pool: ...
    >>> means = running_mean(iter(readings)) >> pool

    What the function uses by name is sent to a rank once, and again when it has changed here. What
    it changes there stays on that rank until the value here changes, or the name is bound to
    another object (``cache = {}``). A reset that leaves the value here as it was, like
    ``cache.clear()`` or ``count = 0``, sends nothing: call a function that resets it there.

    >>> reset() @ pool

    With several calls (``gather``, ``&``, ``map`` and ``>``), the values of a generator are
    returned as a list once the call is done, so that the call can be retried if its rank is lost,
    and no rank waits for a reader. Each call has its own iterators; it is not retried if it has
    used items of an iterator that cannot be restarted.
    """
    check_limits(timeout, retries)
    if function is None:
        return lambda function: ComputeFunction(checked(function), timeout, retries)
    return ComputeFunction(checked(function), timeout, retries)


function = compute


class ComputeFunction(NotCalled, Generic[P, R]):
    """A function that runs on a cluster; see `compute`."""

    def __init__(
        self,
        function: Callable[P, R],
        timeout: float | None = None,
        retries: int | None = None,
    ) -> None:
        # Attributes of other objects or classes must not be copied: they would hide our methods.
        updated = functools.WRAPPER_UPDATES if inspect.isroutine(function) else ()
        functools.update_wrapper(self, function, updated=updated)
        self.__name__: str = getattr(function, "__name__", type(function).__name__)
        self.__qualname__: str = getattr(function, "__qualname__", self.__name__)
        self._function = function
        inner = _decorated(function)
        self._timeout: float | None = inner._timeout if inner and timeout is None else timeout
        self._retries: int | None = inner._retries if inner and retries is None else retries

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> PendingCompute[R]:
        return PendingCompute(self, args, kwargs, self._timeout, self._retries)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process."""
        return self.local_function(*args, **kwargs)

    @property
    def local_function(self) -> Callable[P, R]:
        """The function without ``@sky.compute``."""
        return cast("Callable[P, R]", _undecorated(self._function))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        function: Any = self._function
        if isinstance(function, staticmethod) or not hasattr(function, "__get__"):
            return self
        bound = function.__get__(instance, owner)
        return self if bound is function else BoundCompute(self, instance, owner)

    def __repr__(self) -> str:
        return f"<sky.compute {self.__qualname__}>"

    def __reduce__(self) -> Any:
        # By name if it can be imported: the name refers to this object, not to its function.
        if _is_importable(self):
            return self.__qualname__
        return ComputeFunction, (self._function, self._timeout, self._retries)


class BoundCompute(ComputeFunction[P, R]):
    """A method with ``@sky.compute``, bound to an object or a class."""

    def __init__(self, method: ComputeFunction[..., R], instance: object, owner: Any) -> None:
        bound: Any = method._function.__get__(instance, owner)
        super().__init__(bound, method._timeout, method._retries)
        self._arguments = (method, instance, owner)
        self.__func__ = method
        self.__self__ = getattr(bound, "__self__", instance)

    def __eq__(self, other: object) -> bool:
        is_same = isinstance(other, BoundCompute) and other.__func__ is self.__func__
        return is_same and cast("Any", other).__self__ is self.__self__

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def __reduce__(self) -> Any:
        # As Python does it, unless the name refers to another method, such as a subclass's.
        if getattr(self.__self__, self.__name__, None) == self:
            return getattr, (self.__self__, self.__name__)
        return BoundCompute, self._arguments


@dataclass(frozen=True, repr=False)
class PendingCompute(Generic[R_co]):
    """A call that waits for a pool.

    ``pending @ pool`` runs it on every rank, ``pending >> pool`` on one, ``pending > pool`` on one
    without waiting for it. ``one & other`` go to free ranks.
    """

    function: ComputeFunction[..., R_co]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    retries: int | None = None

    def call(self, decorators: Iterable[Decorate] = (), streams: bool = False) -> Call:
        """Return the call to send to a rank; see `Call`."""
        return Call(self.function.local, self.args, self.kwargs, tuple(decorators), streams)

    def with_timeout(self, timeout: float | None) -> PendingCompute[R_co]:
        """Return the same call with a time limit in seconds."""
        check_limits(timeout, None)
        return replace(self, timeout=timeout)

    def with_retries(self, retries: int) -> PendingCompute[R_co]:
        """Return the same call with a number of retries if its rank is lost."""
        check_limits(None, retries)
        return replace(self, retries=retries)

    @overload
    def __matmul__(  # type: ignore[overload-overlap] # a generator's values come one by one
        self: PendingCompute[Iterator[S]], pool: Pool
    ) -> Iterator[tuple[int, S]]: ...

    @overload
    def __matmul__(  # type: ignore[overload-overlap]
        self: PendingCompute[AsyncIterator[S]], pool: Pool
    ) -> Iterator[tuple[int, S]]: ...

    @overload
    def __matmul__(self, pool: Pool) -> list[R_co]: ...

    def __matmul__(self, pool: Pool) -> Any:
        return method_of(pool, "broadcast", "@")(self)

    def __rshift__(self, pool: Pool) -> R_co:
        return cast("R_co", method_of(pool, "dispatch", ">>")(self))

    def __gt__(self, pool: Pool) -> CallFuture[R_co]:
        return cast("CallFuture[R_co]", method_of(pool, "begin", ">")(self))

    def __and__(self, other: PendingCompute[S]) -> PendingGroup[tuple[R_co, S]]:
        return PendingGroup((self, _pending(other)))

    def __repr__(self) -> str:
        name = self.function.__qualname__
        return f"<{name}(…) has not run: write {name}(…) @ pool, or >> pool for one rank>"


@dataclass(frozen=True, repr=False)
class PendingGroup(NotForAllRanks, Generic[T_co]):
    """Calls that wait for a pool: ``group >> pool`` sends each to a free rank.

    See `gather`.
    """

    calls: tuple[PendingCompute[Any], ...]
    stream: bool = False
    ordered: bool = False

    def with_timeout(self, timeout: float | None) -> PendingGroup[T_co]:
        """Return the same calls, each with a time limit in seconds."""
        return replace(self, calls=tuple(call.with_timeout(timeout) for call in self.calls))

    def with_retries(self, retries: int) -> PendingGroup[T_co]:
        """Return the same calls, each with a number of retries if its rank is lost."""
        return replace(self, calls=tuple(call.with_retries(retries) for call in self.calls))

    def __rshift__(self, pool: Pool) -> T_co:
        return cast("T_co", method_of(pool, "run_group", ">>")(self))

    def __and__(
        self: PendingGroup[tuple[*Ts]], other: PendingCompute[S]
    ) -> PendingGroup[tuple[*Ts, S]]:
        return PendingGroup((*self.calls, _pending(other)), self.stream, self.ordered)

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[PendingCompute[Any]]:
        return iter(self.calls)

    def __repr__(self) -> str:
        return f"<{len(self.calls)} calls have not run: write (…) >> pool>"


@overload
def gather(
    *calls: PendingCompute[R],
    stream: Literal[False] = ...,
    ordered: bool = ...,
    retries: int | None = ...,
    timeout: float | None = ...,
) -> PendingGroup[tuple[R, ...]]: ...


@overload
def gather(
    *calls: PendingCompute[R],
    stream: Literal[True],
    ordered: bool = ...,
    retries: int | None = ...,
    timeout: float | None = ...,
) -> PendingGroup[Iterator[R]]: ...


def gather(
    *calls: PendingCompute[Any],
    stream: bool = False,
    ordered: bool = False,
    retries: int | None = None,
    timeout: float | None = None,
) -> PendingGroup[Any]:
    """Combine calls, each of which is to run once, on any free rank.

    The first call that fails raises its error, with its position among the calls as ``index``;
    calls that have not begun by then are cancelled, and running ones are stopped.

    Parameters
    ----------
    *calls
        Calls of functions with ``@sky.compute``.
    stream
        Whether ``>>`` returns an iterator that yields each result once it is available, instead of
        a tuple of all.
    ordered
        Whether that iterator keeps the order of the calls.
    retries
        How often a call is retried on another rank if its rank is lost; once by default.
    timeout
        Seconds that each call may take.

    Raises
    ------
    UsageError
        If something is not such a call.

    Examples
    --------
    >>> results = sky.gather(*(score(seed) for seed in range(100))) >> pool
    >>> for result in sky.gather(*calls, stream=True) >> pool:
    ...     print(result)
    """
    group: PendingGroup[Any] = PendingGroup(tuple(map(_pending, calls)), stream, ordered)
    if retries is not None:
        group = group.with_retries(retries)
    return group if timeout is None else group.with_timeout(timeout)


def computed(function: Callable[..., Any]) -> Callable[..., PendingCompute[Any]]:
    """Return a function with ``@sky.compute``, which it may have already.

    It may also be a bound method, or have arguments from `functools.partial`.
    """
    return function if _decorated(function) else compute(function)


def _decorated(function: Any) -> ComputeFunction[..., Any] | None:
    """Return the function with ``@sky.compute`` inside another."""
    while isinstance(function, MethodType | functools.partial):
        function = function.__func__ if isinstance(function, MethodType) else function.func
    return function if isinstance(function, ComputeFunction) else None


def _undecorated(function: Any) -> Any:
    """Return a function or a callable made from one, without the ``@sky.compute`` inside it."""
    if isinstance(function, ComputeFunction):
        return function.local_function
    if isinstance(function, staticmethod):
        return function.__func__
    if not _decorated(function):
        return function
    if isinstance(function, MethodType):
        return MethodType(_undecorated(function.__func__), function.__self__)
    return functools.partial(_undecorated(function.func), *function.args, **function.keywords)


def _pending(call: object) -> PendingCompute[Any]:
    if isinstance(call, PendingCompute):
        return call
    if isinstance(call, PendingGroup):
        raise UsageError("a group of calls is no call: write gather(*group, …).")
    raise UsageError(
        f"{type(call).__name__} is no call of a function with @sky.compute: write "
        "sky.gather(*calls) >> pool, or (f(1) & f(2)) >> pool with the parentheses."
    )


def _is_importable(function: ComputeFunction[..., Any]) -> bool:
    """Return whether its name, imported on a rank, refers to this very object."""
    if function.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function
