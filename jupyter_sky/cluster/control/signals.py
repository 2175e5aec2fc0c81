"""Signals that end this process: what would cost money otherwise ends first, as after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from jupyter_sky.transport import event_loop

_NAMES = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP

_ONCE = 1.0
"""Seconds in which a signal counts once: ``timeout`` sends it to a process, and to its group."""

_set: dict[signal.Signals, Any] = {}
"""The handlers of the signals that are heard now."""


@contextlib.contextmanager
def as_interrupt(is_heard_again: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise `KeyboardInterrupt` for signals that end the process, which end it afterwards.

    Existing handlers are kept, and nothing is changed outside the main thread.

    Parameters
    ----------
    is_heard_again
        Returns whether the exception is raised once more when a signal comes later, too, such as
        where the user's code may have ignored it. Otherwise it would disturb the clean-up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    last = 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        came.append(number)
        if len(came) == 1 or (time.monotonic() - last > _ONCE and is_heard_again()):
            last = time.monotonic()
            raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, interrupt)
            _set[number] = interrupt
    try:
        yield
    finally:
        if came:  # also where it came while something was ended, which goes on
            event_loop.finish()
        # A generator that nobody refers to any more may end in any thread.
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                _set.pop(number, None)
                if signal.getsignal(number) is interrupt:  # else the user has set another one
                    signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _forget() -> None:
    # A forked child has nothing to end, and those that end it expect no `KeyboardInterrupt`.
    for number, handler in _set.items():
        if signal.getsignal(number) is handler:  # else the user has set another one
            signal.signal(number, signal.SIG_DFL)
    _set.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
