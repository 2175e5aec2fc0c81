"""A call that is sent to a rank: a function with its arguments and decorators."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Decorate = Callable[[Callable[..., Any]], Callable[..., Any]]


class Conversation(Protocol):
    """The notebook, from the perspective of a call (see `node.rank.calls.conversation`)."""

    def send(self, value: Any) -> bool:
        """Send a yielded value; return ``False`` if no more are wanted."""

    def items(self, number: int) -> Iterator[Any]:
        """Yield the items of an iterator of the notebook."""


@dataclass(frozen=True)
class Fed:
    """Stands for an argument that is an iterator of the notebook, by number."""

    number: int


@dataclass(frozen=True)
class Call:
    """A function with its arguments, to be called without any.

    Parameters
    ----------
    function, args, kwargs
        The function and its arguments.
    decorators
        The decorators of plugins; the first is the outermost.
    streams
        Whether the notebook reads each value of a generator as it is yielded.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    decorators: tuple[Decorate, ...] = ()
    streams: bool = False

    def __call__(self, notebook: Conversation | None = None) -> Any:
        """Run the function to completion, and return its result.

        A coroutine is awaited. Values of a generator are sent to the notebook if it reads them;
        otherwise they become a list, which can be pickled. Arguments that are iterators of the
        notebook fetch their items on demand.
        """
        result = self._begin(notebook)
        # If nobody reads the values, the rank would wait for ever.
        return _sent(result, notebook) if notebook and self.streams else _finished(result)

    def _begin(self, notebook: Conversation | None) -> Any:
        def argument(value: Any) -> Any:
            return notebook.items(value.number) if notebook and isinstance(value, Fed) else value

        function = self.function
        for decorate in reversed(self.decorators):
            function = decorate(function)
        kwargs = {name: argument(value) for name, value in self.kwargs.items()}
        result = function(*map(argument, self.args), **kwargs)
        return _awaited(result) if inspect.iscoroutine(result) else result


def _finished(result: Any) -> Any:
    if inspect.isasyncgen(result):
        return _awaited(_drained(result))
    return list(result) if inspect.isgenerator(result) else result


def _awaited(result: Coroutine[Any, Any, T]) -> T:
    import asyncio  # imported here, since the notebook never needs it

    return asyncio.run(result)


def _sent(result: Any, notebook: Conversation) -> Any:
    """Send each value that a generator yields; return other results unchanged."""
    if inspect.isasyncgen(result):
        return _awaited(_sent_later(result, notebook))
    if not inspect.isgenerator(result):
        return result
    try:
        for value in result:
            if not notebook.send(value):
                break
    finally:
        result.close()
    return None


async def _drained(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


async def _sent_later(items: Any, notebook: Conversation) -> None:
    try:
        async for item in items:
            if not notebook.send(item):
                break
    finally:
        await items.aclose()
