"""What travels to a rank and is called there: a function, its arguments, its decorators."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
Decorate = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Call:
    """A function with its arguments, to be called without any.

    Parameters
    ----------
    function, args, kwargs
        What to call, and with what.
    decorators
        The decorators of plugins; the first is the outermost.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    decorators: tuple[Decorate, ...] = ()

    def __call__(self) -> Any:
        """Run the function to its end, and return its result.

        A coroutine is awaited. What a generator yields becomes a list, since that can be pickled.
        """
        function = self.function
        for decorate in reversed(self.decorators):
            function = decorate(function)
        result = function(*self.args, **self.kwargs)
        if inspect.iscoroutine(result):
            result = _awaited(result)
        if inspect.isasyncgen(result):
            return _awaited(_drained(result))
        return list(result) if inspect.isgenerator(result) else result


def _awaited(result: Coroutine[Any, Any, T]) -> T:
    import asyncio  # the notebook never gets here, so its start does not pay for this

    return asyncio.run(result)


async def _drained(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]
