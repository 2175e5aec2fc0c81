"""Where an interrupt may be raised in a rank: in the user's code, never in ours around it.

What is wanted: SIGINT raises ``KeyboardInterrupt`` in the user's code, wherever that is, so that
``except`` and ``finally`` work as in any Python program. Our code around it has to run to its end:
an interrupt inside the loop that receives commands would end the rank, and half a message would
garble its socket. Nor may an interrupt be lost if the rank was just about to enter the user's code.

What does not work:

- ``try`` around the user's code. Between its last line and the ``except`` there is a gap, as there
  is before its first line: an interrupt in the gap is raised in our code.
- A flag that says whose code is running. The gap is between the user's last line and the line that
  clears the flag. It gets worse if the user's code calls ours, which calls the user's again: a cell
  that displays an object with a ``_repr_html_`` of the user's.
- Blocking the signal with ``pthread_sigmask``. The user's threads, which do not block it, get it
  instead, and Python still runs the handler in the main thread.

The solution: mark *stack frames*, as trio does. Code runs under one of the functions below, and the
signal handler walks up the stack that it interrupts to the nearest of their frames. A frame is on
the stack or it is not; there is no moment in between.

- Under `Interrupts.run_interruptible`, and `Interrupts.run_step` within it or between runs, the
  handler raises.
- Under `Interrupts.run_protected` it remembers the interrupt, which is raised when control returns
  from there to interruptible code.
- Under `Interrupts.run_ignoring` it does nothing: the agent repeats an interrupt that was not
  raised (`supervisor.stop`).

At some places in the user's code the handler raises a moment later: see `deferral`.

See https://github.com/python-trio/trio/blob/main/src/trio/_core/_ki.py
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec, TypeVar

from jupyter_sky.node.rank import child_interrupts
from jupyter_sky.node.rank.deferral import Deferral, Handler
from jupyter_sky.node.rank.user_handlers import UserHandlers

_REPEAT = signal.SIGRTMAX
"""Repeats an interrupt; as another SIGINT it would come twice where the first was slow."""

_PAUSE = signal.SIGRTMAX - 1

_LIMIT = int(signal.SIGRTMAX) - 2

_LIMIT_AGAIN = 0.1
"""Seconds between interrupts of a step that has to end, until one was raised in it."""

_CLEANS_UP = 5.0
"""Seconds from then to the next: it may be cleaning up, but its code may also go on."""

LONGEST_PAUSE = 60.0
"""Seconds that the user's code is paused at most."""

# The C function behind `signal.signal`, which would look up both handlers among its enums in vain:
# as much work as everything else at the beginning of a short cell.
_set_handler: Callable[[int, Handler], object] = vars(sys.modules["_signal"])["signal"]

P = ParamSpec("P")
R = TypeVar("R")


class Interrupts:
    """Handles SIGINT in this process; created in its main thread.

    Attributes
    ----------
    was_requested
        Whether an interrupt has arrived since `run_interruptible` was last called.
    was_raised
        Whether it was raised, so that the user's code could react to it.
    is_late
        Whether a step was interrupted because its time was over or because it was cancelled.
    deferral
        Defers interrupts where they would do harm.
    """

    def __init__(self) -> None:
        self.was_requested = False
        self.was_raised = False
        self.is_late = False
        self._waits: Callable[[], bool] | None = None
        self._is_carried_over = False
        self.deferral = Deferral(stop=self._on_interrupt, on_lost=self.forget_raised)
        self._is_pending = self._force = False
        self._of_user = UserHandlers()
        self._main = threading.get_ident()
        self._until = self._paused = self._over = threading.Event()
        self._handlers = (
            (int(signal.SIGINT), self._on_interrupt),
            (int(_REPEAT), self._on_repeat),
        )
        signal.signal(_PAUSE, self._on_pause)
        # Without a handler SIGINT would end the process: it may arrive before the first run.
        signal.signal(_REPEAT, self._on_repeat)
        os.register_at_fork(after_in_child=self._in_child)

    def run_interruptible(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which interrupts are raised, and what the user's handlers raise."""
        try:
            self._of_user.give_back()
            # The previous run may have installed handlers of its own.
            for number, handler in self._handlers:
                _set_handler(number, handler)
            self._begin_run()
            return function(*args, **kwargs)
        finally:
            self.run_protected(self._of_user.hold, self._on_interrupt)

    def run_step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which interrupts are raised, as a part of longer work.

        An interrupt that is pending is raised first.
        """
        self.raise_pending()
        return function(*args, **kwargs)

    def run_between_runs(
        self,
        waits: Callable[[], bool],
        function: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function that interrupts end if it keeps the next run from beginning.

        That run was stopped, too, and is interrupted once it begins. Where none waits, an interrupt
        comes too late for the run before, and does nothing.

        Parameters
        ----------
        waits
            Returns whether a command waits; callable from any thread.
        function
            Calls the user's code, like tasks of former cells.
        """
        if not self._is_carried_over:
            self._begin_run()
        self.was_raised, self._waits = False, waits
        try:
            return self.run_step(function, *args, **kwargs)
        finally:
            self._waits = None
            self._is_carried_over |= self.was_raised

    @property
    def keeps_waiting(self) -> bool:
        """Whether what `run_between_runs` has called keeps a command waiting."""
        waits = self._waits
        return waits is not None and waits()

    def _begin_run(self) -> None:
        self._force = False
        self._is_pending, self._is_carried_over = self._is_carried_over, False
        self.was_requested = self._is_pending
        self.was_raised = False
        if not self._is_pending:
            self.deferral.begin_run()

    def run_protected(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function during which an interrupt is deferred."""
        if threading.get_ident() != self._main:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if self._is_pending and _is_interruptible(sys._getframe(1)):
            self.raise_pending()
        return result

    def run_ignoring(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function during and after which no interrupt is raised.

        Used to show errors, of which an interrupt would become a part. The agent repeats the
        interrupt.
        """
        return function(*args, **kwargs)

    def limit(self, seconds: float | None) -> threading.Event:
        """Interrupt the main thread when the time for a step is over, until the step has ended.

        Without a time limit, only `end_step` interrupts it.

        Returns
        -------
        threading.Event
            To be set by the main thread when the step has ended.
        """
        over = threading.Event()
        self.is_late = False
        _set_handler(_LIMIT, self._on_limit)
        if seconds is not None:
            self._watch(over, seconds)
        return over

    def forget_raised(self) -> None:
        """Let an interrupt that a finished step has got be raised in what follows as well.

        The step may have caught it. Whoever wants more than the step to end repeats it.
        """
        self.was_raised = False

    def end_step(self, over: threading.Event) -> None:
        """Interrupt a step for which `limit` was called, from another thread."""
        self._watch(over, 0)

    def _watch(self, over: threading.Event, wait: float) -> None:
        def watch() -> None:
            ended = over.wait(wait)
            while not ended:
                self._over = over
                signal.pthread_kill(self._main, _LIMIT)
                ended = over.wait(_LIMIT_AGAIN) or (self.is_late and over.wait(_CLEANS_UP))

        threading.Thread(target=watch, name="sky-limit", daemon=True).start()

    def repeat(self, force: bool = False) -> None:
        """Interrupt the main thread again, from another thread, if no interrupt was raised in it.

        Parameters
        ----------
        force
            Whether to do so even if one was raised.
        """
        self._force = force
        # Not `raise_signal`: only the thread that receives a signal wakes from a system call.
        signal.pthread_kill(self._main, _REPEAT)

    def pause(self, until: threading.Event) -> threading.Event:
        """Pause the user's code in the main thread, from another thread, until an event is set.

        Our own code there continues, and no pause is longer than `LONGEST_PAUSE`, since the user's
        code may hold a lock that the other thread needs.

        Returns
        -------
        threading.Event
            Set once the main thread has paused, which it does not do inside a C function.
        """
        self._until, self._paused = until, threading.Event()
        signal.pthread_kill(self._main, _PAUSE)
        return self._paused

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._waits and not self._waits():
            return
        self.was_requested = True
        force, self._force = self._force, False
        # A stack without a marked frame belongs to a coroutine library that runs the user's code.
        if _is_interruptible(frame) is False:
            self._is_pending = True
        elif self.is_late and not self._over.is_set() and not force:
            # The step was interrupted already and may be cleaning up: this one comes after it.
            self._is_pending = self.was_raised = True
        elif self.deferral.defers(_down_to_mark(frame), self._on_interrupt):
            self._force = force
        else:
            self.was_raised = True
            raise KeyboardInterrupt

    def _on_repeat(self, signum: int, frame: FrameType | None) -> None:
        if self._force or not self.was_raised:
            self._on_interrupt(signum, frame)

    def _on_limit(self, signum: int, frame: FrameType | None) -> None:
        # An interrupt after the end of the step is too late, and not meant for what follows.
        if self._over.is_set() or _is_interruptible(frame) is False:
            return
        if not self.deferral.defers(_down_to_mark(frame), self._on_limit):
            self.is_late = True
            raise KeyboardInterrupt

    def raise_pending(self) -> None:
        """Raise an interrupt that is pending, as in a run that was stopped before it began."""
        if self._is_pending:
            self._is_pending, self.was_raised = False, True
            raise KeyboardInterrupt

    def _on_pause(self, signum: int, frame: FrameType | None) -> None:
        self._paused.set()
        if _is_interruptible(frame) is not False:
            self._until.wait(LONGEST_PAUSE)

    def _in_child(self) -> None:
        """Stop handling interrupts in a process that the cell has forked."""
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            child_interrupts.begin(forked_by=sys._getframe(1))


def _is_interruptible(frame: FrameType | None) -> bool | None:
    """Return the mark of the nearest marked frame on a stack; ``None`` if there is none."""
    while frame is not None:
        if frame.f_code is _INTERRUPTIBLE or frame.f_code is _STEP:
            return True
        if frame.f_code is _PROTECTED or frame.f_code is _IGNORING:
            return False
        frame = frame.f_back
    return None


def _down_to_mark(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a stack within the nearest frame in which interrupts are raised."""
    while frame is not None and frame.f_code is not _INTERRUPTIBLE and frame.f_code is not _STEP:
        yield frame
        frame = frame.f_back


_INTERRUPTIBLE = Interrupts.run_interruptible.__code__
_STEP = Interrupts.run_step.__code__
_PROTECTED = Interrupts.run_protected.__code__
_IGNORING = Interrupts.run_ignoring.__code__
