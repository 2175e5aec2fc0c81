"""Tasks beside others, and what a task does that must not be cut off, or that may block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Flag:
    """What happens once, for threads that wait for it: a `threading.Event` at a tenth of its cost.

    Only one thread sets it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_set = False

    def set(self) -> None:
        """Let those go on that wait for it, now and later."""
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def is_set(self) -> bool:
        """Return whether it has happened."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait for it so long at most, and return whether it has happened."""
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
        """Wait until all are done, at most ``within`` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within)

    async def cancel(self, within: float) -> None:
        """Cancel all, and wait for their ends, at most ``within`` seconds."""
        for task in self._tasks:
            task.cancel()
        await self.finish(within)


class Changes:
    """Tells tasks and observers of a loop that something has changed.

    Parameters
    ----------
    observers
        Called, without arguments, at each change; one that fails disturbs nothing.
    """

    def __init__(self, observers: Sequence[Callable[[], None]]) -> None:
        self._observers = observers
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """Tell of a change; from the loop's thread."""
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)
        for observer in self._observers:
            with contextlib.suppress(Exception):
                observer()

    async def next(self) -> None:
        """Wait until something changes."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed


class Batch(Generic[T]):
    """Collects what comes at one time, and hands it on as one when the loop has read all of it.

    Parameters
    ----------
    take
        Called with what has come, in its order.
    """

    def __init__(self, take: Callable[[list[T]], object]) -> None:
        self._take = take
        self._items: list[T] = []

    def add(self, item: T) -> None:
        """Hand something on soon; from the loop's thread."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.flush)
        self._items.append(item)

    def flush(self) -> None:
        """Hand on now what is there: something comes that belongs behind it."""
        if self._items:
            items, self._items = self._items, []
            self._take(items)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end; errors of those that have failed go nowhere."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    # Asked for, since asyncio prints an error that nobody has asked for.
    await asyncio.gather(*tasks, return_exceptions=True)


async def uninterrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also when the task that waits for it is cancelled."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # else asyncio prints that nobody has asked for it
        raise


async def blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may block in a thread, so that the loop goes on.

    A task that is cancelled waits for it all the same: what it writes would else come after what
    the task writes next.
    """
    return await uninterrupted(asyncio.to_thread(function, *args, **kwargs))


async def either(task: asyncio.Task[None], other: Coroutine[Any, Any, object]) -> None:
    """Wait until a task has ended or something else has happened; the task goes on then."""
    waiting = asyncio.ensure_future(other)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
