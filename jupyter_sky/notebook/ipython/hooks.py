"""Hooks of IPython that run to their end, whenever the user presses Stop."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec

P = ParamSpec("P")

# The C functions behind those of `signal`, which look up enums: eight times the work of all else.
_functions: dict[str, Any] = vars(sys.modules["_signal"])
_handler_of, _set_handler = _functions["getsignal"], _functions["signal"]

# Windows has no SIGHUP.
_SIGNALS = [
    int(getattr(signal, each)) for each in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, each)
]


def without_interrupts(hook: Callable[P, None]) -> Callable[P, None]:
    """Have a hook of IPython's before or after a cell ignore Ctrl-C, and other signals like it.

    Raised there, it would stop nothing: IPython prints a traceback of the hook, and goes on. But
    what the hook was noting would be lost, such as which names the cell has assigned. A program
    hears of it afterwards, and ends before its next cell.
    """

    @functools.wraps(hook)
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        # Another thread never gets it, and a handler that is not of Python cannot be set again.
        if threading.current_thread() is not threading.main_thread():
            hook(*args, **kwargs)
            return
        handlers = {each: _handler_of(each) for each in _SIGNALS}
        held = {each: handler for each, handler in handlers.items() if callable(handler)}
        came: list[tuple[int, FrameType | None]] = []
        try:
            # Ignored by the system they would be ignored by processes, too, that another thread
            # starts.
            for each in held:
                _set_handler(each, lambda *given: came.append(given))
            hook(*args, **kwargs)
        finally:
            for each, handler in held.items():
                with contextlib.suppress(KeyboardInterrupt):  # one that came just before
                    _set_handler(each, handler)
            for number, frame in came[:1]:
                with contextlib.suppress(KeyboardInterrupt):
                    held[number](number, frame)

    return called
