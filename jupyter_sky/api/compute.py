"""Functions of the cluster: ``train(data) @ pool`` runs on every rank, ``>>`` on one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from jupyter_sky.api.call import Call, Decorate
from jupyter_sky.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


class Pool(Protocol):
    """What can stand to the right of ``@`` and ``>>``."""

    def broadcast(self, pending: PendingCompute[R]) -> list[R]: ...

    def dispatch(self, pending: PendingCompute[R]) -> R: ...


def compute(function: Callable[P, R]) -> ComputeFunction[P, R]:
    """Turn a function into one that runs on a cluster.

    A call of it runs nothing yet: it returns a `PendingCompute` to send to a pool. The decorator
    goes above all others. It is also named ``sky.function``.

    Parameters
    ----------
    function
        What is to run on the ranks of a cluster.

    Raises
    ------
    UsageError
        When it is no function.

    Examples
    --------
    >>> @sky.compute
    ... def train(data): ...
    >>> results = train(data) @ pool  # on every rank: a list in rank order
    >>> result = train(data) >> pool  # on one rank
    >>> train.local(data)  # here, as if it were not decorated
    """
    if not callable(function):
        raise UsageError(
            f"@sky.compute goes above a function, not {type(function).__name__}: "
            "write it without parentheses, above `def`."
        )
    return ComputeFunction(function)


function = compute


class ComputeFunction(Generic[P, R]):
    """A function that runs on a cluster; see `compute`."""

    __name__: str  # these two are copied from the function
    __qualname__: str

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> PendingCompute[R]:
        return PendingCompute(self, args, kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process."""
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<sky.compute {self.__qualname__}>"

    def __reduce__(self) -> Any:
        # By name where it can be imported: the name stands for this object, not for its function.
        if _is_importable(self):
            return self.__qualname__
        return ComputeFunction, (self._function,)


@dataclass(frozen=True, repr=False)
class PendingCompute(Generic[R]):
    """A call that waits for a pool: ``pending @ pool`` or ``pending >> pool``."""

    function: ComputeFunction[..., R]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def call(self, decorators: Iterable[Decorate] = ()) -> Call:
        """Return what is sent to a rank and called there."""
        return Call(self.function.local, self.args, self.kwargs, tuple(decorators))

    def __matmul__(self, pool: Pool) -> list[R]:
        return cast("list[R]", _method(pool, "broadcast", "@")(self))

    def __rshift__(self, pool: Pool) -> R:
        return cast("R", _method(pool, "dispatch", ">>")(self))

    def __repr__(self) -> str:
        name = self.function.__qualname__
        return f"<{name}(…) has not run: write {name}(…) @ pool, or >> pool for one rank>"


def _method(pool: object, name: str, operator: str) -> Callable[..., Any]:
    method = getattr(pool, name, None)
    if not callable(method):
        raise UsageError(
            f"a call goes to a pool, not to {type(pool).__name__}: write train() {operator} pool, "
            "where pool comes from `with sky.ComputePool(...) as pool:`."
        )
    return cast("Callable[..., Any]", method)


def _is_importable(function: ComputeFunction[..., Any]) -> bool:
    """Return whether its name, imported on a rank, stands for this very object."""
    if function.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function
