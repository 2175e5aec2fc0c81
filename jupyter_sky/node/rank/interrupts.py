"""Where an interrupt may be raised in a rank: in the user's code, and never in ours around it.

What we want: SIGINT raises ``KeyboardInterrupt`` in the user's code, wherever that is, so that
``except`` and ``finally`` work as in any Python program. Our code around it has to run to its end:
an interrupt inside of the loop that receives commands would end the rank, and half a message would
garble its socket. No interrupt is lost either, if the rank was about to enter the user's code.

Things that don't work:

- ``try`` around the user's code. Between its last line and the ``except`` there is a gap, as there
  is in front of its first line: an interrupt in there is raised in ours.
- A flag that says whose code runs. The gap is between the user's last line and the line that lowers
  the flag. It gets worse where their code calls ours, which calls theirs: a cell that displays an
  object, whose ``_repr_html_`` is theirs.
- Blocking the signal with ``pthread_sigmask``. Threads of the user's, which do not block it, get it
  instead, and Python runs the handler in the main thread all the same.

Solution: mark *stack frames*, as trio does. Code runs under one of the functions below, and the
signal handler walks up the stack that it interrupts to the nearest of their frames. A frame is on
the stack or it is not; there is no moment in between.

- Under `Interrupts.run_interruptible`, and `Interrupts.run_step` within it, the handler raises.
- Under `Interrupts.run_protected` it remembers the interrupt, which is raised when control returns
  from there to interruptible code.
- Under `Interrupts.run_ignoring` it does nothing: the agent repeats an interrupt that was not
  raised (`supervisor.stop`).

See https://github.com/python-trio/trio/blob/main/src/trio/_core/_ki.py
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

_REPEAT = signal.SIGRTMAX
"""Repeats an interrupt; as another SIGINT it would come twice where the first was slow."""

_PAUSE = signal.SIGRTMAX - 1

_LIMIT = int(signal.SIGRTMAX) - 2

_LIMIT_AGAIN = 0.1
"""Seconds between interrupts of a step whose time is over: its code may go on after one."""

_CLEANS_UP = 5.0
"""Seconds until the next interrupt of a step that is not wanted any more: it may be cleaning up."""

LONGEST_PAUSE = 60.0
"""Seconds that the user's code is paused at most."""

# What `signal.signal` is made of. That looks for both handlers among its constants, where they are
# not: as much work as the rest of the beginning of a short cell.
_set_handler: Callable[[int, Callable[[int, FrameType | None], None]], object] = vars(
    sys.modules["_signal"]
)["signal"]

P = ParamSpec("P")
R = TypeVar("R")


class Interrupts:
    """What SIGINT does in this process; made in its main thread.

    Attributes
    ----------
    was_requested
        Whether an interrupt has come since `run_interruptible` was called last.
    was_raised
        Whether it was raised, so that the user's code could react to it.
    is_late
        Whether a step was interrupted because its time was over, or it was not wanted any more.
    """

    def __init__(self) -> None:
        self.was_requested = False
        self.was_raised = False
        self.is_late = False
        self._is_pending = self._force = False
        self._main = threading.get_ident()
        self._until = self._paused = self._over = threading.Event()
        self._handlers = (
            (int(signal.SIGINT), self._on_interrupt),
            (int(_REPEAT), self._on_repeat),
        )
        signal.signal(_PAUSE, self._on_pause)
        # Without a handler it would end the process: a break may come before the first run does.
        signal.signal(_REPEAT, self._on_repeat)

    def run_interruptible(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which interrupts are raised."""
        # The run before may have installed handlers of its own.
        for number, handler in self._handlers:
            _set_handler(number, handler)
        self.was_requested = self.was_raised = self._is_pending = self._force = False
        return function(*args, **kwargs)

    def run_step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which interrupts are raised, as a part of longer work.

        One that has waited for it is raised before.
        """
        self._raise_pending()
        return function(*args, **kwargs)

    def run_protected(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function for whose end an interrupt waits."""
        if threading.get_ident() != self._main:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if self._is_pending and _is_interruptible(sys._getframe(1)):
            self._is_pending, self.was_raised = False, True
            raise KeyboardInterrupt
        return result

    def run_ignoring(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which, and at the end of which, no interrupt is raised.

        For what shows an error, of which an interrupt would become a part. The agent repeats the
        interrupt.
        """
        return function(*args, **kwargs)

    def limit(self, seconds: float | None) -> threading.Event:
        """Interrupt the main thread when its time for a step is over, until that has ended.

        Without a time, `end_step` alone does so.

        Returns
        -------
        threading.Event
            For the main thread to set when the step has ended.
        """
        over = threading.Event()
        self.is_late = False
        _set_handler(_LIMIT, self._on_limit)
        if seconds is not None:
            self._watch(over, seconds, _LIMIT_AGAIN)
        return over

    def end_step(self, over: threading.Event) -> None:
        """Interrupt a step, for which `limit` was called, from another thread."""
        self._watch(over, 0, _CLEANS_UP)

    def _watch(self, over: threading.Event, wait: float, again: float) -> None:
        def watch() -> None:
            left = wait
            while not over.wait(left):
                left = again if self.is_late else _LIMIT_AGAIN
                self._over = over
                signal.pthread_kill(self._main, _LIMIT)

        threading.Thread(target=watch, name="sky-limit", daemon=True).start()

    def repeat(self, force: bool = False) -> None:
        """Interrupt the main thread, from another one, if the interrupt was not raised there.

        Parameters
        ----------
        force
            Whether to do so even if it was.
        """
        self._force = force
        # Not `raise_signal`: only the thread that a signal is sent to wakes from a system call.
        signal.pthread_kill(self._main, _REPEAT)

    def pause(self, until: threading.Event) -> threading.Event:
        """Pause the user's code in the main thread, from another one, until an event is set.

        Our own code there goes on, and no pause is longer than `LONGEST_PAUSE`: the user's code may
        hold a lock that the other thread needs.

        Returns
        -------
        threading.Event
            Set when the main thread has paused. Inside of a C function it does not.
        """
        self._until, self._paused = until, threading.Event()
        signal.pthread_kill(self._main, _PAUSE)
        return self._paused

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.was_requested = True
        # A stack without a frame of ours is a coroutine library's, with code of the user's.
        if _is_interruptible(frame) is False:
            self._is_pending = True
        else:
            self.was_raised = True
            raise KeyboardInterrupt

    def _on_repeat(self, signum: int, frame: FrameType | None) -> None:
        if self._force or not self.was_raised:
            self._force = False
            self._on_interrupt(signum, frame)

    def _on_limit(self, signum: int, frame: FrameType | None) -> None:
        # What comes when the step has ended is too late, and not for what follows.
        if not self._over.is_set() and _is_interruptible(frame) is not False:
            self.is_late = True
            raise KeyboardInterrupt

    def _raise_pending(self) -> None:
        if self._is_pending:
            self._is_pending, self.was_raised = False, True
            raise KeyboardInterrupt

    def _on_pause(self, signum: int, frame: FrameType | None) -> None:
        self._paused.set()
        if _is_interruptible(frame) is not False:
            self._until.wait(LONGEST_PAUSE)


def _is_interruptible(frame: FrameType | None) -> bool | None:
    """Return what the nearest marked frame on a stack says; ``None`` if there is none."""
    while frame is not None:
        if frame.f_code is _INTERRUPTIBLE or frame.f_code is _STEP:
            return True
        if frame.f_code is _PROTECTED or frame.f_code is _IGNORING:
            return False
        frame = frame.f_back
    return None


_INTERRUPTIBLE = Interrupts.run_interruptible.__code__
_STEP = Interrupts.run_step.__code__
_PROTECTED = Interrupts.run_protected.__code__
_IGNORING = Interrupts.run_ignoring.__code__
