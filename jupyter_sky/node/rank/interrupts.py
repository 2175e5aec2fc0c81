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

- Under `Interrupts.run_interruptible`, and `Interrupts.run_step` within it, the handler raises.
- Under `Interrupts.run_protected` it remembers the interrupt, which is raised when control returns
  from there to interruptible code.
- Under `Interrupts.run_ignoring` it does nothing: the agent repeats an interrupt that was not
  raised (`supervisor.stop`).

Where a ``with`` statement is about to be entered, an interrupt comes again a moment later: raised
there, it would leave a lock held that ``__enter__`` has taken, and what needs the lock next would
wait for ever. Until Python 3.13 this was so in managers written in Python, like conditions and
queues; since Python 3.14 also for locks themselves. So it does where one is left: raised at the
beginning of ``__exit__``, as it is where a collective has just been broken, it would leave torch
without gradients for good, or JAX with another mesh. So it does where a condition, or what is made
of one, gives its lock back to wait, and takes it again: raised there, the ``with`` around it would
fail to give back what it does not hold, and the next `notify` would wake who waits no more. So it
does where a module is imported: raised there, it would leave a part of a package behind, which is
imported no more, and what needs the rest would fail until the rank is restarted. A library may take
seconds, as what the first optimizer of torch imports. What takes longer is interrupted all the
same, and a module of the user's own sooner: it may be a program that trains.

What is raised in a finalizer, like ``__del__``, Python prints and ignores, and the code around it
goes on. The end of each epoch is such a place: there a ``DataLoader`` waits for its workers. So it
comes again there as well, until it is raised where it ends something.

See https://github.com/python-trio/trio/blob/main/src/trio/_core/_ki.py
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import importlib
import opcode
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

from jupyter_sky.serialization.user_modules import is_user_code

_REPEAT = signal.SIGRTMAX
"""Repeats an interrupt; as another SIGINT it would come twice where the first was slow."""

_PAUSE = signal.SIGRTMAX - 1

_LIMIT = int(signal.SIGRTMAX) - 2

_LIMIT_AGAIN = 0.1
"""Seconds between interrupts of a step that has to end, until one was raised in it."""

_CLEANS_UP = 5.0
"""Seconds from then to the next: it may be cleaning up, but its code may also go on."""

_DEFERRED = signal.SIGRTMAX - 3

_LONGEST_ENTERING = 0.1
"""Seconds for which interrupts are deferred at most where a ``with`` statement begins or ends."""

_AFTER_FINALIZER = 0.001
"""Seconds after which one comes again that was raised in a finalizer."""

_LONGEST_IMPORT = 4.0
"""The same where a library is imported; less than ranks have until a Stop ends them."""

_LONGEST_OWN_IMPORT = 1.0
"""The same where that is a module of the user's own."""

LONGEST_PAUSE = 60.0
"""Seconds that the user's code is paused at most."""

Handler = Callable[[int, FrameType | None], None]

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
    cut_import
        The library in whose import an interrupt was raised, since it went on and on; or empty.
    """

    def __init__(self) -> None:
        self.was_requested = False
        self.was_raised = False
        self.is_late = False
        self.cut_import = ""
        self._is_pending = self._force = False
        self._main = threading.get_ident()
        self._until = self._paused = self._over = threading.Event()
        self._handlers = (
            (int(signal.SIGINT), self._on_interrupt),
            (int(_REPEAT), self._on_repeat),
        )
        signal.signal(_PAUSE, self._on_pause)
        # Without a handler SIGINT would end the process: it may arrive before the first run.
        signal.signal(_REPEAT, self._on_repeat)
        signal.signal(_DEFERRED, self._on_deferred)
        self._deferred_for, self._comes_again = 0.0, False
        self._deferred: Handler = self._on_interrupt
        self._raised_by: Handler | None = None
        self._usual_hook = sys.unraisablehook
        sys.unraisablehook = self._on_ignored
        os.register_at_fork(after_in_child=self._in_child)

    def run_interruptible(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which interrupts are raised."""
        # The previous run may have installed handlers of its own.
        for number, handler in self._handlers:
            _set_handler(number, handler)
        self.was_requested = self.was_raised = self._is_pending = self._force = False
        self._deferred_for, self._comes_again = 0.0, False
        self._raised_by, self.cut_import = None, ""
        return function(*args, **kwargs)

    def run_step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in which interrupts are raised, as a part of longer work.

        An interrupt that is pending is raised first.
        """
        self._raise_pending()
        return function(*args, **kwargs)

    def run_protected(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function during which an interrupt is deferred."""
        if threading.get_ident() != self._main:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if self._is_pending and _is_interruptible(sys._getframe(1)):
            self._is_pending, self.was_raised = False, True
            raise KeyboardInterrupt
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
        self.was_requested = True
        force, self._force = self._force, False
        # A stack without a marked frame belongs to a coroutine library that runs the user's code.
        if _is_interruptible(frame) is False:
            self._is_pending = True
        elif self.is_late and not self._over.is_set() and not force:
            # The step was interrupted already and may be cleaning up: this one comes after it.
            self._is_pending = self.was_raised = True
        elif self._defer(frame, self._on_interrupt):
            self._force = force
        else:
            self.was_raised, self._raised_by = True, self._on_interrupt
            raise KeyboardInterrupt

    def _defer(self, frame: FrameType | None, handler: Handler) -> bool:
        """Return whether a handler is called again in a moment, and raises nothing now.

        Moments are counted, and not what the clock says: on a busy machine this process may stand
        still for longer than that, just where it is.
        """
        longest, library = _longest_deferral(frame)
        moment = longest / 100
        if self._deferred_for < longest and self._come_again(handler, moment):
            return True
        self._deferred_for, self._comes_again = 0.0, False
        self.cut_import = library
        return False

    def _come_again(self, handler: Handler, moment: float) -> bool:
        """Have a handler called again in a moment; return whether it will be."""
        if self._comes_again:  # one that is repeated meanwhile makes the time no shorter
            if handler == self._on_interrupt:
                self._deferred = handler
            return True
        # Not `threading`, whose own locks may be what is about to be entered.
        with contextlib.suppress(RuntimeError):  # no thread can be started
            _thread.start_new_thread(self._send_deferred, (moment,))
            self._deferred_for, self._comes_again = self._deferred_for + moment, True
            self._deferred = handler
            return True
        return False

    def _send_deferred(self, delay: float) -> None:
        time.sleep(delay)
        signal.pthread_kill(self._main, _DEFERRED)

    def _on_deferred(self, signum: int, frame: FrameType | None) -> None:
        self._comes_again = False
        if self._deferred_for:  # otherwise its run has ended meanwhile
            self._deferred(signum, frame)

    def _on_repeat(self, signum: int, frame: FrameType | None) -> None:
        if self._force or not self.was_raised:
            self._on_interrupt(signum, frame)

    def _on_limit(self, signum: int, frame: FrameType | None) -> None:
        # An interrupt after the end of the step is too late, and not meant for what follows.
        if self._over.is_set() or _is_interruptible(frame) is False:
            return
        if not self._defer(frame, self._on_limit):
            self.is_late, self._raised_by = True, self._on_limit
            raise KeyboardInterrupt

    def _on_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Have an interrupt come again that was raised in a finalizer, in vain."""
        is_interrupt = isinstance(ignored.exc_value, KeyboardInterrupt)
        if not is_interrupt or self._raised_by is None or threading.get_ident() != self._main:
            self._usual_hook(ignored)
        elif not self._come_again(self._raised_by, _AFTER_FINALIZER):
            self.was_raised = False  # the agent repeats it

    def _raise_pending(self) -> None:
        if self._is_pending:
            self._is_pending, self.was_raised = False, True
            raise KeyboardInterrupt

    def _on_pause(self, signum: int, frame: FrameType | None) -> None:
        self._paused.set()
        if _is_interruptible(frame) is not False:
            self._until.wait(LONGEST_PAUSE)

    def _in_child(self) -> None:
        """Leave a process that the cell has forked to Python, whose traceback has no line of ours.

        Such processes print it, as a worker of a pool does when the user presses Stop.
        """
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_interruptible(frame: FrameType | None) -> bool | None:
    """Return the mark of the nearest marked frame on a stack; ``None`` if there is none."""
    while frame is not None:
        if frame.f_code is _INTERRUPTIBLE or frame.f_code is _STEP:
            return True
        if frame.f_code is _PROTECTED or frame.f_code is _IGNORING:
            return False
        frame = frame.f_back
    return None


def _longest_deferral(frame: FrameType | None) -> tuple[float, str]:
    """Return for how many seconds an interrupt of a stack may be deferred; 0 if it need not be.

    Also the library that is being imported there, if one is.
    """
    longest, is_own, library = 0.0, False, ""
    while frame is not None and frame.f_code is not _INTERRUPTIBLE and frame.f_code is not _STEP:
        source, at = frame.f_code, frame.f_lasti
        code = source.co_code
        if at >= 2 and (code[at] == _BEFORE_WITH or code[at - 2 : at] == _LOAD_ENTER):
            longest = max(longest, _LONGEST_ENTERING)
        takes_lock = source is _WAIT and frame.f_lineno in _WAIT_LINES
        if source.co_name in _NOT_CUT_OFF or source is _ON_IGNORED or takes_lock:
            longest = max(longest, _LONGEST_ENTERING)
        if source.co_name == "<module>":
            is_own = _is_own(source.co_filename)
        elif source is _IMPORTING and is_own:
            longest = max(longest, _LONGEST_OWN_IMPORT)
        elif source is _IMPORTING:
            longest, library = max(longest, _LONGEST_IMPORT), str(frame.f_locals["name"])
        frame = frame.f_back
    return longest, library


def _is_own(file: str) -> bool:
    with contextlib.suppress(OSError):  # the working directory is gone
        return is_user_code(file)
    return True


# The instruction that calls `__enter__`, and since Python 3.14 the one before a call of it.
_BEFORE_WITH = opcode.opmap.get("BEFORE_WITH")
_LOAD_ENTER = bytes((opcode.opmap["LOAD_SPECIAL"], 0)) if not _BEFORE_WITH else None

# `threading.Condition` calls these functions of its lock, which may be written in C, or its own.
_GIVEN_BACK = ("_release_save", "_acquire_restore")
_NOT_CUT_OFF = frozenset(("__exit__", "__aexit__", *_GIVEN_BACK))
_WAIT = threading.Condition.wait.__code__
_WAIT_LINES = frozenset(
    each.positions.lineno
    for each in dis.get_instructions(_WAIT)
    if each.argval in _GIVEN_BACK and each.positions
)

_IMPORTING = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]

_INTERRUPTIBLE = Interrupts.run_interruptible.__code__
_STEP = Interrupts.run_step.__code__
_PROTECTED = Interrupts.run_protected.__code__
_ON_IGNORED = Interrupts._on_ignored.__code__
_IGNORING = Interrupts.run_ignoring.__code__
