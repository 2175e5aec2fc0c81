"""Signals that end this process: while a cluster starts, they end the start first, like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_NAMES = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for signals that end the process, which end it afterwards.

    Existing handlers are kept, and nothing is changed outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
