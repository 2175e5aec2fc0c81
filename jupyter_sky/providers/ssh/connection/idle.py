"""Closes connections that nobody needs any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

UNUSED_FOR = 120.0
"""Seconds without a link or a command after which a connection is closed.

A launch that waits for one host is not to log in to the others again: that may need the touch of a
key.
"""


class IdleTimer:
    """Calls a function some time after something was last reported idle.

    Parameters
    ----------
    hang_up
        Called in a thread of its own; it checks whether that is still so.
    """

    def __init__(self, hang_up: Callable[[], None]) -> None:
        self._hang_up = hang_up
        self._timer: threading.Timer | None = None

    def restart(self) -> None:
        """Start, or restart, the timer."""
        self.stop()
        self._timer = threading.Timer(UNUSED_FOR, self._hang_up)
        self._timer.daemon = True
        self._timer.name = "sky-idle"
        self._timer.start()

    def stop(self) -> None:
        """Stop the timer."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
