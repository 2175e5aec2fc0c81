"""Places in the user's code and in libraries where an interrupt is raised a moment later.

What is wanted: what a Stop has ended can be used again by the next cell. At some places that is not
so: an interrupt there leaves a lock held for ever, torch without gradients, or half a package
imported, until the rank is restarted.

What does not work:

- Holding the interrupt back until control returns, as `Interrupts.run_protected` does. These places
  are not functions of ours: nothing is called when they are left. And an import may never return,
  as that of a program that trains.
- Waiting in the signal handler. What has to go on is below it on the stack.

The solution: the handler returns, and a thread sends another signal a moment later, whose handler
looks at the stack again. It raises once no frame is at such a place any more, or one has been for
too long. Each place is described where it is recognised, at the end of this file.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import importlib
import opcode
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType

from jupyter_sky.serialization.user_modules import is_user_code

_AGAIN = signal.SIGRTMAX - 3

_LONGEST = 0.1
"""Seconds for which an interrupt is deferred at most."""

_LONGEST_IMPORT = 4.0
"""The same where a library is imported; less than ranks have until a Stop ends them."""

_LONGEST_OWN_IMPORT = 1.0
"""The same where that is a module of the user's own."""

_LONGEST_START = 1.0
"""The same where processes are started."""

_AFTER_FINALIZER = 0.001
"""Seconds after which one comes again that was raised in a finalizer."""

Handler = Callable[[int, FrameType | None], None]


class Deferral:
    """Calls the handler of an interrupt again until it may raise it.

    Parameters
    ----------
    stop
        The handler that is called if several are waiting.
    on_lost
        Called when an interrupt was raised in vain, and cannot come again.

    Attributes
    ----------
    cut_import
        The library in whose import an interrupt was raised, since it went on and on; or empty.
    """

    def __init__(self, stop: Handler, on_lost: Callable[[], None]) -> None:
        self.cut_import = ""
        self._stop, self._on_lost = stop, on_lost
        self._main = threading.get_ident()
        self._waited = 0.0
        self._coming: Handler | None = None  # what the signal that is on its way will call
        self._raised_by: Handler | None = None
        signal.signal(_AGAIN, self._on_again)
        self._usual_hook = sys.unraisablehook
        sys.unraisablehook = self._on_ignored

    def begin_run(self) -> None:
        """Forget the interrupts of the previous run."""
        self._waited, self._coming, self._raised_by, self.cut_import = 0.0, None, None, ""

    def defers(self, frames: Iterable[FrameType], handler: Handler) -> bool:
        """Return whether a handler is called again in a moment; otherwise it raises now.

        Moments are counted, and not what the clock says: on a busy machine this process may stand
        still for longer than that, just where it is.

        Parameters
        ----------
        frames
            The frames that it interrupts, from the innermost on.
        handler
            The handler.
        """
        longest, library = _longest_at(frames)
        if self._waited < longest and self._come_again(handler, longest / 100):
            return True
        self._waited, self._coming = 0.0, None
        self._raised_by, self.cut_import = handler, library
        return False

    def _come_again(self, handler: Handler, moment: float) -> bool:
        """Have a handler called again in a moment; return whether it will be."""
        if self._coming is None:
            try:
                # Not `threading`, whose own locks may be what is about to be entered.
                _thread.start_new_thread(self._send_again, (moment,))
            except RuntimeError:  # no thread can be started
                return False
            self._waited += moment
        if self._coming is None or handler == self._stop:
            self._coming = handler
        return True

    def _send_again(self, moment: float) -> None:
        time.sleep(moment)
        signal.pthread_kill(self._main, _AGAIN)

    def _on_again(self, signum: int, frame: FrameType | None) -> None:
        handler, self._coming = self._coming, None
        if handler:  # otherwise its run has ended meanwhile
            handler(signum, frame)

    def _on_ignored(self, ignored: sys.UnraisableHookArgs) -> None:
        """Have an interrupt come again that was raised in a finalizer, like ``__del__``.

        Python prints it and goes on with the code around it. The end of each epoch is such a place:
        there a ``DataLoader`` waits for its workers.
        """
        is_interrupt = isinstance(ignored.exc_value, KeyboardInterrupt)
        if not is_interrupt or self._raised_by is None or threading.get_ident() != self._main:
            self._usual_hook(ignored)
        elif not self._come_again(self._raised_by, _AFTER_FINALIZER):
            self._on_lost()


def _longest_at(frames: Iterable[FrameType]) -> tuple[float, str]:
    """Return for how many seconds an interrupt of a stack may be deferred; 0 if it need not be.

    Also the library that is being imported there, if one is.
    """
    longest, is_own, library = 0.0, False, ""
    for frame in frames:
        code = frame.f_code
        if _enters_with(frame) or _takes_lock(frame) or code.co_name in _NOT_CUT_OFF:
            longest = max(longest, _LONGEST)
        if code.co_qualname in _STARTING:
            longest = max(longest, _LONGEST_START)
        if code.co_name == "<module>":
            is_own = _is_own(code.co_filename)
        elif code is _IMPORTING and is_own:
            longest = max(longest, _LONGEST_OWN_IMPORT)
        elif code is _IMPORTING:
            longest, library = max(longest, _LONGEST_IMPORT), str(frame.f_locals["name"])
    return longest, library


def _enters_with(frame: FrameType) -> bool:
    """Return whether a ``with`` statement is about to be entered.

    The lock that ``__enter__`` has taken would be held for ever. So it is with managers written in
    Python, like conditions and queues, and since Python 3.14 with locks themselves.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 2 and (code[at] == _BEFORE_WITH or code[at - 2 : at] == _LOAD_ENTER)


# The instruction that calls `__enter__`, and since Python 3.14 the one before a call of it.
_BEFORE_WITH = opcode.opmap.get("BEFORE_WITH")
_LOAD_ENTER = bytes((opcode.opmap["LOAD_SPECIAL"], 0)) if not _BEFORE_WITH else None


def _takes_lock(frame: FrameType) -> bool:
    """Return whether a condition gives its lock back to wait, or takes it again.

    The ``with`` around it would fail to give back what it does not hold, and the next `notify`
    would wake who waits no more. The functions of a lock that is written in C have no frame.
    """
    return frame.f_code is _WAIT and frame.f_lineno in _WAIT_LINES


_GIVEN_BACK = ("_release_save", "_acquire_restore")
_WAIT = threading.Condition.wait.__code__
_WAIT_LINES = frozenset(
    each.positions.lineno
    for each in dis.get_instructions(_WAIT)
    if each.argval in _GIVEN_BACK and each.positions
)

_NOT_CUT_OFF = frozenset(("__exit__", "__aexit__", *_GIVEN_BACK, Deferral._on_ignored.__name__))
"""Functions that come to their end.

Torch would stay without gradients, or JAX with another mesh, where a ``with`` statement is left as
a collective has just been broken. In our hook for finalizers an interrupt would be ignored again.
"""

_STARTING = frozenset(("BaseProcess.start", "_MultiProcessingDataLoaderIter.__init__"))
"""What starts processes.

One that nobody knows yet would be left behind, and torch cannot end some of its workers, but prints
an error in the next cell.
"""

_IMPORTING = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
"""What imports a module.

The part of a package that is there would be imported no more, and what needs the rest would fail. A
library may take seconds, as what the first optimizer of torch imports. A module of the user's own
gets less time: it may be a program that trains.
"""


def _is_own(file: str) -> bool:
    with contextlib.suppress(OSError):  # the working directory is gone
        return is_user_code(file)
    return True
