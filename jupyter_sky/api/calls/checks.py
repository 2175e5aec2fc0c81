"""Checks of a call before it is sent to a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from jupyter_sky.errors import UsageError

F = TypeVar("F")


def checked(function: F) -> F:
    """Return a function if ``@sky.compute`` is its outermost decorator.

    Raises
    ------
    UsageError
        If it is not a function.
    """
    if not callable(function) and not isinstance(function, classmethod):
        raise UsageError(
            f"@sky.compute goes above a function, not {type(function).__name__}: write it without "
            "parentheses, above `def`; and the function alone in `pool.submit(train, 5)` and "
            "`pool.map(train, items)`."
        )
    return function


def check_limits(timeout: float | None, retries: int | None) -> None:
    """Refuse invalid limits of a call.

    Raises
    ------
    UsageError
        With the valid values.
    """
    if timeout is not None and not (_is_number(timeout, float) and timeout > 0):
        raise UsageError(f"timeout={timeout!r}: give the seconds that a call may take.")
    if retries is not None and not (_is_number(retries) and retries >= 0):
        raise UsageError(f"retries={retries!r}: give 0 for a call that is never tried again.")


def method_of(pool: object, name: str, operator: str) -> Callable[..., Any]:
    """Return the pool's method for an operator.

    Raises
    ------
    UsageError
        If the object is not a pool.
    """
    method = getattr(pool, name, None)
    if not callable(method):
        raise UsageError(
            f"a call goes to a pool, not to {type(pool).__name__}: write train() {operator} pool, "
            "where pool comes from `with sky.ComputePool(...) as pool:`."
        )
    return cast("Callable[..., Any]", method)


class NotForAllRanks:
    """Refuses the operators of a single call, for several that go to free ranks."""

    def __matmul__(self, pool: object) -> NoReturn:
        raise UsageError(
            "calls that are combined go to a free rank each: write gather(…) >> pool, or "
            "f(…) @ pool for a call on every rank."
        )

    def __gt__(self, pool: object) -> NoReturn:
        raise UsageError(
            "calls that are combined have no common future: write gather(…, stream=True) >> pool, "
            "or [call > pool for call in calls]."
        )


class NotCalled:
    """Refuses the operators of a call, for a function of which none was made."""

    __name__: str

    def __matmul__(self, pool: object) -> NoReturn:
        self._refuse("@")

    def __rshift__(self, pool: object) -> NoReturn:
        self._refuse(">>")

    def __gt__(self, pool: object) -> NoReturn:
        self._refuse(">")

    def _refuse(self, operator: str) -> NoReturn:
        name = self.__name__
        raise UsageError(f"{name} was not called: write {name}(…) {operator} pool.")


def _is_number(value: object, *types: type) -> bool:
    return isinstance(value, (int, *types)) and not isinstance(value, bool)
