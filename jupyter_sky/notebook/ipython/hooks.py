"""Hooks of IPython that run to their end, whenever the user presses Stop."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def without_interrupts(hook: Callable[P, None]) -> Callable[P, None]:
    """Have a hook of IPython's before or after a cell ignore Ctrl-C.

    Raised there, it would stop nothing: IPython prints a traceback of the hook, and goes on. But
    what the hook was noting would be lost, such as which names the cell has assigned.
    """

    @functools.wraps(hook)
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        handler = signal.getsignal(signal.SIGINT)
        # Another thread never gets it, and a handler that is not of Python cannot be set again.
        if threading.current_thread() is not threading.main_thread() or handler is None:
            hook(*args, **kwargs)
            return
        # Ignored by the system it would be ignored by processes, too, that another thread starts.
        signal.signal(signal.SIGINT, lambda *_: None)
        try:
            hook(*args, **kwargs)
        finally:
            with contextlib.suppress(KeyboardInterrupt):  # one that came just before
                signal.signal(signal.SIGINT, handler)

    return called
