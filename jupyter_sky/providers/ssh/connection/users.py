"""Who uses a connection: it is closed some time after the last of them, and never under one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

UNUSED_FOR = 120.0
"""Seconds without a link or a command after which a connection is closed.

A launch that waits for one host is not to log in to the others again: that may need the touch of a
key.
"""


class Users:
    """Keeps count of the users of a connection.

    Parameters
    ----------
    hang_up
        Closes the connection. It is called when nobody uses it, and nobody begins to before it has
        returned; some time after the last user it is called in a thread of its own.
    """

    def __init__(self, hang_up: Callable[[], None]) -> None:
        self._hang_up = hang_up
        self._lock = threading.Lock()
        self._lasting: set[object] = set()
        self._brief = 0
        self._timer: threading.Timer | None = None

    def add(self, user: object) -> None:
        """Note a user that stays: an agent's link, or a host that is reached over this one."""
        with self._lock:
            self._lasting.add(user)
            self.stop_timer()

    def discard(self, user: object) -> None:
        """Forget a user that `add` noted."""
        with self._lock:
            self._lasting.discard(user)
            self._restart_timer()

    @contextlib.contextmanager
    def briefly(self) -> Iterator[None]:
        """Note a user for as long as a block runs: a command, or connecting."""
        with self._lock:
            self._brief += 1
            self.stop_timer()
        try:
            yield
        finally:
            with self._lock:
                self._brief -= 1
                self._restart_timer()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._lasting or self._brief)

    @property
    def lasting(self) -> tuple[object, ...]:
        """The users that stay."""
        with self._lock:
            return tuple(self._lasting)

    def hang_up_if_none(self) -> None:
        """Close the connection if nobody uses it."""
        with self._lock:
            if not self:
                self._hang_up()

    def stop_timer(self) -> None:
        """Stop waiting for the time to hang up: the connection is closed, or used."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _restart_timer(self) -> None:
        self.stop_timer()
        if self:
            return
        self._timer = threading.Timer(UNUSED_FOR, self.hang_up_if_none)
        self._timer.daemon = True
        self._timer.name = "sky-idle"
        self._timer.start()
