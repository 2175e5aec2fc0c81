"""Signal handlers of the user's code and its libraries, which may raise while ours is running.

What a handler raises belongs to the run that has installed it. Between runs it would be raised in
the loop that receives commands, and end the rank: torch's raises when a worker of a ``DataLoader``
has failed, as after a Stop, and an alarm may go off when its cell has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

# The C functions behind those of `signal`, which would look everything up among enums.
_get: Callable[[int], Handler | int | None] = vars(sys.modules["_signal"])["getsignal"]
_set: Callable[[int, Handler], object] = vars(sys.modules["_signal"])["signal"]

_NUMBERS = [int(each) for each in signal.valid_signals() if each < signal.SIGRTMIN]
"""All but those for which programs have no names, some of which are ours."""


class UserHandlers:
    """Holds what the user's handlers raise back while none of the user's code is running."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Handler, Handler]] = []
        self._pid = os.getpid()

    def hold(self, own: Handler) -> None:
        """Have handlers called, but raise nothing, from now on.

        Parameters
        ----------
        own
            The handler that is not the user's.
        """
        if os.getpid() != self._pid:  # a process that the cell has forked
            return
        for number in _NUMBERS:
            try:
                handler = _get(number)
                if callable(handler) and handler != own:
                    held = _quiet(handler)
                    self._held.append((number, held, handler))
                    _set(number, held)
            except BaseException as error:  # one is called just now
                _print(error)

    def give_back(self) -> None:
        """Let handlers raise again."""
        for number, held, handler in self._held:
            if _get(number) is held:
                _set(number, handler)
        self._held.clear()


def _quiet(handler: Handler) -> Handler:
    def call(signum: int, frame: FrameType | None) -> None:
        try:
            handler(signum, frame)
        except BaseException as error:
            _print(error)

    return call


def _print(error: BaseException) -> None:
    """Print what a handler has raised, unless it is a Stop."""
    if not isinstance(error, KeyboardInterrupt):
        traceback.print_exception(error)
