"""Helpers for asyncio: tasks, batches, uninterruptible and blocking work, async generators."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Flag:
    """An event that is set once: a `threading.Event` at a tenth of the cost.

    Only one thread sets it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_set = False

    def set(self) -> None:
        """Set it, and release all threads that wait for it, now or later."""
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait for it at most that long; return whether it is set."""
        if self._is_set:
            return True
        if self._lock.acquire(timeout=seconds):
            self._lock.release()
        return self._is_set


class BackgroundTasks:
    """Holds each task until it is done: the event loop itself has only weak references."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a coroutine as a task of the running loop, and return the task."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, within: float) -> None:
        """Wait until all tasks are done, at most ``within`` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within)

    async def cancel(self, within: float) -> None:
        """Cancel all tasks and wait until they end, at most ``within`` seconds."""
        for task in self._tasks:
            task.cancel()
        await self.finish(within)


class Changes:
    """Notifies tasks and observers of a loop of changes.

    Parameters
    ----------
    observers
        Called without arguments at each change; errors in one do not affect the others.
    """

    def __init__(self, observers: Sequence[Callable[[], None]]) -> None:
        self._observers = observers
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """Announce a change; call it in the loop's thread."""
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)
        for observer in self._observers:
            with contextlib.suppress(Exception):  # one that fails must not silence the others
                observer()

    async def next(self) -> None:
        """Wait until something changes."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed


class Coalescer(Generic[T]):
    """Collects the items of one turn of the event loop, and hands them on together.

    Parameters
    ----------
    take
        Called with the items, in order.
    """

    def __init__(self, take: Callable[[list[T]], object]) -> None:
        self._take = take
        self._items: list[T] = []

    def add(self, item: T) -> None:
        """Add an item, to be handed on soon; call it in the loop's thread."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.flush)
        self._items.append(item)

    def flush(self) -> None:
        """Hand on all items now, because something follows that must come after them."""
        if self._items:
            items, self._items = self._items, []
            self._take(items)


async def take_each(*steps: Callable[[], Awaitable[None] | None]) -> None:
    """Take steps one after the other; one that fails is logged, and the next is taken too."""
    for step in steps:
        try:
            if (taken := step()) is not None:
                await taken
        except Exception:
            logging.getLogger(__name__).exception("a step has failed")


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they end, ignoring their errors."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    # Retrieved, since asyncio prints errors that nobody retrieves.
    await asyncio.gather(*tasks, return_exceptions=True)


async def shielded(awaitable: Awaitable[T]) -> T:
    """Wait for something that goes on where the task that waits is cancelled.

    As `asyncio.shield`, which since Python 3.14 also prints the errors of what nobody waits for any
    more: those are of no interest to a user who has stopped it.
    """
    future = asyncio.ensure_future(awaitable)
    if not future.done():
        await asyncio.wait({future})
    return future.result()


async def uninterrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, even if the task that waits for it is cancelled.

    If it fails then, its error is raised: it may say what is left to be done.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        return await _outlasted(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            task.result()
        raise


async def undoing(
    function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a coroutine that undoes what it began when it is cancelled, which happens only once.

    A task that waits for it can be cancelled again and again, and still waits for its end. The
    coroutine has a task of its own, which its time limits can cancel as ever.
    """
    task = asyncio.ensure_future(function(*args, **kwargs))
    try:
        return await shielded(task)
    except asyncio.CancelledError:
        task.cancel()
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        raise


async def blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may block in a thread, so that the loop continues.

    A cancelled task still waits for it: otherwise the function might write after whatever the task
    writes next.
    """
    return await _outlasted(asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs)))


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of its own that may hang for ever, as on a network drive.

    Unlike those of `asyncio.to_thread`, it keeps neither this process from ending nor others from
    having a thread.
    """
    called = concurrent.futures.Future[T]()
    called.set_running_or_notify_cancel()  # nobody cancels it from now on

    def call() -> None:
        try:
            called.set_result(function(*args, **kwargs))
        except BaseException as error:
            called.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(called)


async def in_time(function: Callable[[], object], within: float) -> None:
    """Call a function in a thread as `aside` does, and wait for it at most ``within`` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await aside(function)


async def _outlasted(task: asyncio.Task[T]) -> T:
    """Wait for the end of a task, also where the one that waits is cancelled."""
    try:
        return await shielded(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # otherwise asyncio prints that the error was never retrieved
        raise


def delegating(
    function: Callable[P, AsyncGenerator[T, Any]],
    context: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    around: Callable[[Awaitable[Any]], Awaitable[Any]] = lambda step: step,
) -> Callable[P, AsyncGenerator[T, Any]]:
    """Return an async generator function that delegates to another, as ``yield from`` would.

    Parameters
    ----------
    function
        The other one.
    context
        What its generators run inside, from their first step to their last.
    around
        What is awaited in place of each of their steps.
    """

    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, Any]:
        with context():
            steps = function(*args, **kwargs)
            step: Awaitable[T] = steps.asend(None)
            while True:
                try:
                    value = await around(step)
                except StopAsyncIteration:
                    return
                try:
                    step = steps.asend((yield value))
                except GeneratorExit:
                    await around(steps.aclose())
                    raise
                except BaseException as error:
                    step = steps.athrow(error)

    return wrapper


async def either(task: asyncio.Task[None], other: Coroutine[Any, Any, object]) -> None:
    """Wait until a task has ended or something else has happened, without cancelling the task."""
    waiting = asyncio.ensure_future(other)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
