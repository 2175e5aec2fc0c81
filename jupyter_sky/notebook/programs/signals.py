"""Signals that stop a program, also where Python would not run their handlers.

Python runs a handler in the main thread, between two steps of its code or when the signal has ended
a system call there. Nothing runs it if the signal comes between the last step and the call, where
the main thread may wait for others that want to run Python, or if another thread receives it: then
``time.sleep(3600)`` sleeps on, and whoever pressed Ctrl-C waits.

The solution: Python tells a thread of each signal (`signal.set_wakeup_fd`), and that thread wakes
the main thread by a harmless signal until it has run its handlers.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAKES = signal.SIGURG  # which hardly any program uses, and which does nothing without a handler
_AGAIN_AFTER = 0.05  # seconds


@contextmanager
def stopped_by_signals(on_stop: Callable[[int], None]) -> Iterator[None]:
    """Have a function called with the number of each signal that should stop this process.

    Parameters
    ----------
    on_stop
        Called in the main thread. What it raises is raised in the code there; where Python ignores
        that, as in a ``__del__``, it is called again.
    """
    # `nohup` has told this process to ignore SIGHUP: it goes on without its terminal.
    heard = [each for each in _STOPS if signal.getsignal(each) is not signal.SIG_IGN]
    watch = _Watch(heard, on_stop)
    handlers = {**dict.fromkeys(heard, watch.on_signal), _WAKES: watch.on_wake}
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    hook, sys.unraisablehook = sys.unraisablehook, watch.on_ignored
    # Trio takes the descriptor while it runs, and gives it back.
    warnings.filterwarnings("ignore", message="It looks like Trio's signal handling code")
    descriptor = signal.set_wakeup_fd(watch.descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        sys.unraisablehook = hook
        for each, handler in before.items():
            signal.signal(each, handler)
        watch.close()


class _Watch:
    """Sees to it that signals are handled; see the module.

    Parameters
    ----------
    heard
        The signals that stop this process.
    on_stop
        As of `stopped_by_signals`.
    """

    def __init__(self, heard: list[signal.Signals], on_stop: Callable[[int], None]) -> None:
        self._heard = heard
        self._on_stop = on_stop
        self._main = threading.get_ident()
        self._last: int | None = None
        # No `Event`, which has a lock: a signal may come while the handler of another one runs.
        self._has_run = False
        self._is_over = False
        self._received, self._told = socket.socketpair()
        self._told.setblocking(False)
        threading.Thread(target=self._watch, name="sky-signals", daemon=True).start()

    @property
    def descriptor(self) -> int:
        """Where Python writes the numbers of signals."""
        return self._told.fileno()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that stops this process."""
        self._has_run = True
        self._last = number
        self._on_stop(number)

    def on_wake(self, number: int, frame: FrameType | None) -> None:
        """Note that the main thread runs handlers, also of signals that came before."""
        self._has_run = True

    def on_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Handle what was raised where Python ignores it, as in a ``__del__``: it comes again."""
        if self._last is None or ignored.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(ignored)
            return
        again = threading.Timer(_AGAIN_AFTER, signal.pthread_kill, (self._main, self._last))
        again.daemon = True
        again.start()

    def close(self) -> None:
        """End the thread."""
        self._is_over = True
        self._told.close()

    def _watch(self) -> None:
        with self._received:
            while number := self._received.recv(1):
                if number[0] not in self._heard:
                    continue
                time.sleep(_AGAIN_AFTER)
                while not (self._has_run or self._is_over):
                    signal.pthread_kill(self._main, _WAKES)
                    time.sleep(_AGAIN_AFTER)
                self._has_run = False
