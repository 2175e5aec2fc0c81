"""Where an interrupt may end what a rank does: in the person's code, and never in ours around it.

The handler looks at the stack that it interrupts. A flag would not do: between the person's last
line and the line that lowers the flag an interrupt can come, and it would end the rank.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

_AGAIN = signal.SIGRTMAX
"""Repeats an interrupt; as another SIGINT it would come twice where the first was slow."""

_STAND_STILL = signal.SIGRTMAX - 1

LONGEST_STILL = 60.0
"""Seconds that the person's code stands still at most."""

P = ParamSpec("P")
R = TypeVar("R")


class Interrupts:
    """What SIGINT does in this process; made in its main thread.

    Attributes
    ----------
    asked
        Whether one has come since ``allow`` was called last.
    heard
        Whether it was raised, so that the person's code could react to it.
    """

    def __init__(self) -> None:
        self.asked = False
        self.heard = False
        self._held = self._force = False
        self._main = threading.get_ident()
        self._until = self._still = threading.Event()
        signal.signal(_STAND_STILL, self._on_stand_still)

    def allow(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that an interrupt may end."""
        # A cell may have put a handler of its own in place.
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(_AGAIN, self._on_repetition)
        self.asked = self.heard = self._held = self._force = False
        return function(*args, **kwargs)

    def hold(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function that an interrupt waits for."""
        if threading.get_ident() != self._main:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if self._held and _allowed(sys._getframe(1)):
            self._held, self.heard = False, True
            raise KeyboardInterrupt
        return result

    def put_off(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in the middle of which, and right behind it, an interrupt is not heard.

        It is one that handles an error, for which an interrupt would become part of the error. Who
        interrupts repeats it.
        """
        return function(*args, **kwargs)

    def repeat(self, force: bool = False) -> None:
        """Interrupt the main thread, from another one, if it has not heard of it.

        Parameters
        ----------
        force
            Whether to do so even if it has.
        """
        self._force = force
        # Not `raise_signal`: only the thread that a signal is sent to wakes from a system call.
        signal.pthread_kill(self._main, _AGAIN)

    def stand_still(self, until: threading.Event) -> threading.Event:
        """Have the person's code stand still, from another thread, until something has happened.

        Only that code does, and not for ever: it may hold a lock that the other thread needs.

        Returns
        -------
        threading.Event
            Set when the main thread has heard of it, which it does not inside of a C function.
        """
        self._until, self._still = until, threading.Event()
        signal.pthread_kill(self._main, _STAND_STILL)
        return self._still

    def _on_stand_still(self, signum: int, frame: FrameType | None) -> None:
        self._still.set()
        if _allowed(frame) is not False:
            self._until.wait(LONGEST_STILL)

    def _on_repetition(self, signum: int, frame: FrameType | None) -> None:
        if self._force or not self.heard:
            self._force = False
            self._on_signal(signum, frame)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True
        # A stack on which we do not stand is a coroutine library's, with code of the person's.
        if _allowed(frame) is False:
            self._held = True
        else:
            self.heard = True
            raise KeyboardInterrupt


def _allowed(frame: FrameType | None) -> bool | None:
    """Return what the nearest caller of ours says; ``None`` if there is none."""
    while frame is not None:
        if frame.f_code is _ALLOW:
            return True
        if frame.f_code is _HOLD or frame.f_code is _PUT_OFF:
            return False
        frame = frame.f_back
    return None


_ALLOW = Interrupts.allow.__code__
_HOLD = Interrupts.hold.__code__
_PUT_OFF = Interrupts.put_off.__code__
