"""What travels to a rank and is called there: a function, its arguments, its decorators."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Decorate = Callable[[Callable[..., Any]], Callable[..., Any]]


class Conversation(Protocol):
    """The notebook, as a call on a rank sees it (`node.rank.calls.conversation`)."""

    def send(self, value: Any) -> bool:
        """Send a value that the call yields; ``False`` if none are wanted any more."""

    def items(self, number: int) -> Iterator[Any]:
        """Yield the items of an iterator of the notebook's."""


@dataclass(frozen=True)
class Fed:
    """An argument that is an iterator of the notebook's, by its number among them."""

    number: int


@dataclass(frozen=True)
class Call:
    """A function with its arguments, to be called without any.

    Parameters
    ----------
    function, args, kwargs
        What to call, and with what.
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
        """Run the function to its end, and return its result.

        A coroutine is awaited. What a generator yields is sent to the notebook where that reads
        it, and becomes a list otherwise, since that can be pickled. Arguments that are iterators of
        the notebook's have their items as they are asked for.
        """
        result = self._begin(notebook)
        # Where nobody reads what is sent, the rank would wait for that without end.
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
    import asyncio  # the notebook never gets here, so its start does not pay for this

    return asyncio.run(result)


def _sent(result: Any, notebook: Conversation) -> Any:
    """Send each value that a generator yields; return what else a function has returned."""
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
