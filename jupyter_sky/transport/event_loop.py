"""The background thread that owns all links of this process.

The main thread belongs to the person: it can be busy in their code for hours. Links have to be
served all the same, so they live on an asyncio loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_lock_of_waiting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None

# A wait in slices lets KeyboardInterrupt through on systems where a blocked lock does not.
_SLICE = 0.5

_Question = tuple[Callable[[], Any], "concurrent.futures.Future[Any]"]
_waiting: list[queue.SimpleQueue[_Question | None]] = []


class NobodyWaits(RuntimeError):
    """There is a question, but no thread of the person's to ask it in."""


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the background thread; the thread starts when it is first needed."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.SelectorEventLoop()
            threading.Thread(target=_loop.run_forever, name="sky-links", daemon=True).start()
        return _loop


def submit(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Start ``coroutine`` on the background loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop())


def call(function: Callable[..., object], *args: object) -> None:
    """Call ``function`` in the background loop, soon."""
    loop().call_soon_threadsafe(function, *args)


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` on the background loop and wait for it; Ctrl-C cancels it."""
    questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
    with _lock_of_waiting:
        _waiting.append(questions)
    future = submit(coroutine)
    future.add_done_callback(lambda done: questions.put(None))
    try:
        while not future.done():
            _answer(questions)
        return future.result()
    except BaseException:
        future.cancel()
        raise
    finally:
        with _lock_of_waiting:
            _waiting.remove(questions)
        while not questions.empty():
            if question := questions.get():
                question[1].set_exception(NobodyWaits())


def wait_whole(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` and wait for it; Ctrl-C cancels it, and waits for what it does then.

    Whoever presses Ctrl-C again does not wait for that; it is done all the same.
    """
    work = _Whole(coroutine)
    try:
        return wait(work.result())
    except BaseException:
        wait(work.stop())
        raise


class _Whole(Generic[T]):
    """Something that is cancelled once at most, by `stop`; lives in the background loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._stopped = False

    async def result(self) -> T:
        if self._stopped:
            raise asyncio.CancelledError
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        return await asyncio.shield(self._task)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is None:
            self._coroutine.close()
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def ask(function: Callable[..., T], *args: object) -> T:
    """Call ``function`` in the thread that waits for the background, and return what it returns.

    A person can be asked in their own thread only: a notebook takes input for the cell that runs.

    Raises
    ------
    NobodyWaits
        When no thread waits.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()
    with _lock_of_waiting:
        if not _waiting:
            raise NobodyWaits
        _waiting[-1].put((lambda: function(*args), answer))
    return answer.result()


def _answer(questions: queue.SimpleQueue[_Question | None]) -> None:
    try:
        question = questions.get(timeout=_SLICE)
    except queue.Empty:
        return
    if question is None:
        return
    function, answer = question
    try:
        answer.set_result(function())
    except BaseException as error:
        answer.set_exception(error)
        if not isinstance(error, Exception):
            raise


def _forget_loop() -> None:
    # A forked child has no such thread any more; it gets its own if it asks.
    global _loop, _lock, _lock_of_waiting
    _loop, _lock, _lock_of_waiting = None, threading.Lock(), threading.Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)
