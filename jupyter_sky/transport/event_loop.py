"""The event loop of this process, in a background thread that owns all links.

The main thread may be busy with the user's code for hours. Links have to be served meanwhile, so
they belong to an asyncio loop in its own thread.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from jupyter_sky.transport.tasks import shielded

T = TypeVar("T")

_lock = threading.Lock()
_waiting_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_stops = threading.local()

# Seconds: where Ctrl-C does not interrupt a blocked lock, it is noticed after this time. The system
# may also give the signal to another thread, which does not wake this one.
_SLICE = 0.5

Undo = Callable[[], Coroutine[Any, Any, None]]
_Request = tuple[Callable[[], Any], "concurrent.futures.Future[Any]"]
_Requests = queue.SimpleQueue[_Request | None]
# What goes on if the user stops waiting for it.
_unwaited: set[concurrent.futures.Future[Any]] = set()


class _Wait:
    """A thread waits for the loop, and meanwhile makes the calls that it is asked for.

    Attributes
    ----------
    thread
        The thread.
    requests
        The calls; ``None`` ends its wait.
    is_over
        Whether it waits no longer. Ctrl-C can come before it is taken off the list, too.
    """

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.requests: _Requests = queue.SimpleQueue()
        self.is_over = False


_waiting: list[_Wait] = []


class StillCleaningUp(KeyboardInterrupt):
    """The user has stopped something twice: its clean-up goes on, but nobody waits for it."""


class CleanUpFailed(KeyboardInterrupt):
    """The user has stopped something, and its clean-up has failed.

    Attributes
    ----------
    error
        With what.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NoWaitingThread(RuntimeError):
    """A function should be called in the user's thread, but no thread waits for the event loop."""


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the background thread, which starts when it is first needed."""
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.SelectorEventLoop()
            _thread = threading.Thread(target=_loop.run_forever, name="sky-links", daemon=True)
            _thread.start()
        return _loop


def is_here() -> bool:
    """Return whether the caller is in the loop's thread, where nothing may block."""
    return _thread is threading.current_thread()


def submit(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Start ``coroutine`` on the background loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop())


def call(function: Callable[..., object], *args: object) -> None:
    """Call ``function`` soon in the background thread."""
    loop().call_soon_threadsafe(function, *args)


def in_thread(function: Callable[[], object]) -> None:
    """Call ``function`` in a thread of the loop's, which calls this; not while the process ends."""
    with contextlib.suppress(RuntimeError):  # the threads have ended, and the loop has not yet
        loop().run_in_executor(None, function)


@contextlib.contextmanager
def interrupted_by(stop: threading.Event) -> Iterator[None]:
    """End this thread's next wait with `KeyboardInterrupt` when an event is set, once."""
    _stops.event = stop
    try:
        yield
    finally:
        _stops.event = None


def wait(coroutine: Coroutine[Any, Any, T], tick: Callable[[], object] = lambda: None) -> T:
    """Run ``coroutine`` on the background loop and wait for it; Ctrl-C cancels it.

    Meanwhile ``tick`` is called twice a second, in this thread.
    """
    waits = _Wait()
    try:
        with _waiting_lock:
            _waiting[:] = [*(each for each in _waiting if not each.is_over), waits]
        return _wait(coroutine, waits.requests, tick)
    finally:
        waits.is_over = True


def _wait(coroutine: Coroutine[Any, Any, T], requests: _Requests, tick: Callable[[], object]) -> T:
    future: concurrent.futures.Future[T] | None = None
    try:
        future = submit(coroutine)
        future.add_done_callback(lambda done: requests.put(None))
        while not future.done():
            _serve(requests)
            _check_stop()
            tick()
        return future.result()
    except BaseException:
        if future is not None:
            future.cancel()
        raise


def wait_for(future: concurrent.futures.Future[Any], timeout: float | None = None) -> None:
    """Wait until a future is done, or some seconds have passed; Ctrl-C ends the wait."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    while not future.done() and (left := until - time.monotonic()) > 0:
        concurrent.futures.wait({future}, min(_SLICE, left))


def wait_with_cleanup(
    coroutine: Coroutine[Any, Any, T],
    undo: Undo | None = None,
    tick: Callable[[], object] = lambda: None,
) -> T:
    """Run ``coroutine`` and wait for it; Ctrl-C cancels it and waits for its clean-up.

    Parameters
    ----------
    coroutine
        What to run.
    undo
        What also belongs to its clean-up; not where it fails. Ctrl-C can come when it has succeeded
        at that moment: the caller never hears of that, so it has to be undone.
    tick
        Called meanwhile, as by `wait`.

    Raises
    ------
    StillCleaningUp
        If Ctrl-C is pressed again during the clean-up, which is completed nevertheless.
    CleanUpFailed
        If the clean-up after Ctrl-C fails.
    """
    work = _CancelledOnce(coroutine, undo)
    try:
        return wait(work.result(), tick)
    except BaseException:
        try:
            # Nobody finds this wait: who stops something wants no further question about it.
            trouble = _wait(work.stop(), queue.SimpleQueue(), lambda: None)
        except KeyboardInterrupt:
            _complete(submit(work.ended()))
            raise StillCleaningUp from None
        if trouble is not None:
            raise CleanUpFailed(trouble) from None
        raise


def wait_uninterrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` and wait for it; Ctrl-C ends the wait, and it is completed nevertheless."""

    async def completed() -> T:
        # From here: in the user's thread, Ctrl-C could come before it is remembered.
        future = submit(coroutine)
        _complete(future)
        return await shielded(asyncio.wrap_future(future))

    return wait(completed())


def finish(within: float | None = None) -> None:
    """Wait for what the user has stopped waiting for, and would end half-way with this process.

    Ctrl-C leaves it as it is.

    Parameters
    ----------
    within
        Seconds for that; ``None`` for as long as it takes.
    """
    left = [each for each in list(_unwaited) if not each.done()]
    if not left:
        return
    with contextlib.suppress(KeyboardInterrupt):
        with contextlib.suppress(Exception):  # the output may be closed
            text = "waiting until what was stopped is ended; Ctrl-C leaves it as it is"
            print(text, file=sys.stderr, flush=True)
        concurrent.futures.wait(left, within)
    _unwaited.clear()


atexit.register(finish)


def _complete(future: concurrent.futures.Future[Any]) -> None:
    _unwaited.add(future)
    future.add_done_callback(_unwaited.discard)


class _CancelledOnce(Generic[T]):
    """A coroutine that `stop` cancels at most once; it belongs to the event loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], undo: Undo | None) -> None:
        self._coroutine = coroutine
        self._undo = undo
        self._task: asyncio.Task[T] | None = None
        self._undoing: asyncio.Task[None] | None = None
        self._stopped = False
        self._cleans_up = False

    async def result(self) -> T:
        if self._stopped:
            raise asyncio.CancelledError
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        return await shielded(self._task)

    async def stop(self) -> Exception | None:
        """Cancel it, wait until it has ended, and return with what its clean-up failed."""
        self._stopped = True
        if self._task is None:
            self._coroutine.close()
            return None
        self._cleans_up = not self._task.done()
        self._task.cancel()
        return await self.ended()

    async def ended(self) -> Exception | None:
        if self._task is None:
            return None
        # Not `gather`: if this is cancelled in turn, that would cancel the clean-up.
        await asyncio.wait({self._task})
        # Without `exception`, asyncio prints that nobody retrieved it.
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and not self._cleans_up:
            return None
        if self._undo and error is None:
            # One task, for a second Ctrl-C that comes while the first one is heeded.
            self._undoing = self._undoing or asyncio.create_task(self._undo())
            await asyncio.wait({self._undoing})
            error = self._undoing.exception()
        return error if isinstance(error, Exception) else None


def call_in_waiting_thread(function: Callable[..., T], *args: object) -> T:
    """Call ``function`` in a thread that waits for the event loop; return what it returns.

    Used for questions to the user: a notebook accepts input only for the running cell. That is in
    the main thread, if it waits; other threads wait now and then for what a page shows.

    Raises
    ------
    NoWaitingThread
        If no thread waits for the loop, or Ctrl-C ended the wait, as at this question.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()
    with _waiting_lock:
        waiting = [each for each in reversed(_waiting) if not each.is_over]
    if not waiting:
        raise NoWaitingThread
    main = threading.main_thread()
    asked = max(waiting, key=lambda waits: waits.thread is main)
    asked.requests.put((lambda: function(*args), answer))
    while not concurrent.futures.wait({answer}, _SLICE).done:
        if asked.is_over and not answer.done():
            raise NoWaitingThread
    return answer.result()


def somebody_waits() -> bool:
    """Return whether a thread waits that `call_in_waiting_thread` could ask the user in."""
    with _waiting_lock:
        return any(not each.is_over for each in _waiting)


def _check_stop() -> None:
    stop: threading.Event | None = getattr(_stops, "event", None)
    if stop is not None and stop.is_set():
        _stops.event = None  # cleaning up may wait for the loop, too
        raise KeyboardInterrupt


def _serve(requests: _Requests) -> None:
    try:
        request = requests.get(timeout=_SLICE)
    except queue.Empty:
        return
    if request is None:
        return
    function, answer = request
    try:
        answer.set_result(function())
    except Exception as error:
        answer.set_exception(error)
    except BaseException:
        # As Ctrl-C: it ends this wait, and would end the loop in one of its tasks.
        answer.set_exception(NoWaitingThread())
        raise


def _forget_loop() -> None:
    # A forked child does not have this thread; it starts its own if it needs one.
    global _loop, _thread, _lock, _waiting_lock
    _loop, _thread, _lock, _waiting_lock = None, None, threading.Lock(), threading.Lock()
    _waiting.clear()
    _unwaited.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)
