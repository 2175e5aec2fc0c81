"""The background thread that owns all links of this process.

The main thread belongs to the person: it can be busy in their code for hours. Links have to be
served all the same, so they live on an asyncio loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None

# A wait in slices lets KeyboardInterrupt through on systems where a blocked lock does not.
_SLICE = 0.5


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
    future = submit(coroutine)
    try:
        while True:
            try:
                return future.result(_SLICE)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
    except BaseException:
        future.cancel()
        raise


def _forget_loop() -> None:
    # A forked child has no such thread any more; it gets its own if it asks.
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)
