"""Accepts connections, without a busy loop when no descriptors are left."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

PAUSE = 1.0
"""Seconds until connections are accepted again when the system had no descriptor for one."""

_AT_ONCE = 16
_SAY_EVERY = 60.0  # seconds


class Acceptor:
    """Accepts connections on a listening socket, in the running loop.

    The system reports a waiting connection until it is accepted. If no descriptor is left for it,
    trying again at once would do nothing else any more.

    Parameters
    ----------
    listener
        The listening socket; it is closed with the acceptor.
    on_connect
        Called for each connection, which it owns from then on.
    on_exhausted
        Called if no descriptor is left for a connection; it may close others.
    pause
        Seconds after that until connections are accepted again.
    """

    def __init__(
        self,
        listener: socket.socket,
        on_connect: Callable[[socket.socket], None],
        on_exhausted: Callable[[], None] = lambda: None,
        pause: float = PAUSE,
    ) -> None:
        self._listener = listener
        self._on_connect = on_connect
        self._on_exhausted = on_exhausted
        self._loop = asyncio.get_running_loop()
        self._pause = pause
        self._resuming: asyncio.TimerHandle | None = None
        self._said = float("-inf")
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more connections."""
        if self._resuming:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # A bounded number, so that other tasks have their turn.
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._wait_for_room(error)
                return
            try:
                self._on_connect(sock)
            except Exception:
                sock.close()
                logging.getLogger(__name__).exception("a connection could not be served")

    def _wait_for_room(self, error: OSError) -> None:
        self._loop.remove_reader(self._listener)
        self._resuming = self._loop.call_later(self._pause, self._resume)
        if time.monotonic() - self._said > _SAY_EVERY:
            self._said = time.monotonic()
            logging.getLogger(__name__).warning("connections have to wait: %s", error.strerror)
        self._on_exhausted()
