"""The user's keyboard, if there is one, and questions that can be withdrawn."""

from __future__ import annotations

import _thread
import getpass
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from jupyter_sky.formatting import is_terminal


def has_keyboard() -> bool:
    """Return whether this thread can ask the user: papermill and nbconvert take no input.

    Only questions in the main thread can be withdrawn when the answer is no longer needed.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if (kernel := _kernel()) is not None:
        return bool(getattr(kernel, "_allow_stdin", False))
    return is_terminal(sys.stdin)


def _kernel() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None)


def _type(prompt: str) -> str:
    """Return what the user types; a file that gets the program's output does not get the prompt."""
    if _kernel() is None and not is_terminal(sys.stdout):
        print(prompt, end="", file=sys.stderr, flush=True)
        prompt = ""
    return input(prompt)


class TakenBack(Exception):
    """Nobody needs the answer any more."""


class Question:
    """A question in the main thread that another thread can withdraw.

    Parameters
    ----------
    lock
        Held by the thread that withdraws it.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._is_open = self._was_taken_back = False

    def ask(self, prompt: str, is_hidden: bool, is_wanted: Callable[[], bool]) -> str:
        """Return what the user types.

        Raises
        ------
        TakenBack
            If the answer is no longer needed.
        EOFError
            If the user ended the input.
        KeyboardInterrupt
            If the user stopped the cell.
        """
        try:
            with self._lock:
                if not is_wanted():
                    raise TakenBack
                self._is_open, self._was_taken_back = True, False
            try:
                return getpass.getpass(prompt) if is_hidden else _type(prompt)
            finally:
                with self._lock:
                    self._is_open = False
        except KeyboardInterrupt:
            if self._was_taken_back:
                raise TakenBack from None
            raise

    def take_back(self) -> None:
        """Withdraw the question, if it is open; called with the lock held."""
        if not self._is_open or self._was_taken_back:
            return
        self._was_taken_back = True
        if hasattr(signal, "pthread_kill"):
            # Only a signal interrupts the system call that reads from a terminal.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            _thread.interrupt_main()
