"""Waits for many connections as for one, and reads whatever arrives within a moment together.

What is wanted: the notebook should read the messages of a thousand agents without waking for each
of them. A turn of an event loop costs as much as reading the messages of one agent, and whatever
arrives in one turn is also handled together (`tasks.Coalescer`).

The solution: the connections are in an epoll object of their own, and the loop waits for that. When
the first of many becomes readable, the loop ignores the object for a moment, and then reads all
that are readable. If there are few, or the system has no epoll, each is read as soon as possible.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

MANY = 32
"""Connections from which on they are read together: a moment is little for so many."""

MOMENT = 0.001
"""Seconds that the first waits for the others."""

_AT_ONCE = 4096  # connections


class Readiness:
    """Calls the readers of many connections, in the loop in which it is first used."""

    def __init__(self) -> None:
        self._readers: dict[int, Callable[[], object]] = {}
        self._epoll: select.epoll | None = None

    def add_reader(self, sock: socket.socket, read: Callable[[], object]) -> None:
        """Call ``read`` whenever the connection is readable or the other side is gone."""
        loop = asyncio.get_running_loop()
        if not hasattr(select, "epoll"):
            loop.add_reader(sock, read)
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            # An epoll object is never writable. Since the loop waits for that as well, it need not
            # forget the object to ignore it: when one is added, the system visits all connections.
            loop.add_writer(self._epoll.fileno(), self._on_ready)
            loop.add_reader(self._epoll.fileno(), self._on_ready)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._readers[sock.fileno()] = read

    def remove_reader(self, sock: socket.socket) -> None:
        """Forget a connection that is about to be closed."""
        if self._epoll is None:
            asyncio.get_running_loop().remove_reader(sock)
        elif self._readers.pop(sock.fileno(), None):
            self._epoll.unregister(sock.fileno())
            if not self._readers:
                self._stop()

    def _stop(self) -> None:
        """Close the epoll object; it is made again for the next connection."""
        assert self._epoll
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._epoll.fileno())
        loop.remove_writer(self._epoll.fileno())
        self._epoll.close()
        self._epoll = None

    def _on_ready(self) -> None:
        if len(self._readers) < MANY:
            self._read()
            return
        assert self._epoll
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._epoll.fileno())
        loop.call_later(MOMENT, self._read_together, self._epoll)

    def _read_together(self, epoll: select.epoll) -> None:
        if self._epoll is not epoll:
            return  # all were closed meanwhile
        asyncio.get_running_loop().add_reader(epoll.fileno(), self._on_ready)
        self._read()

    def _read(self) -> None:
        epoll = self._epoll
        assert epoll
        for fd, _ in epoll.poll(0, _AT_ONCE):
            if read := self._readers.get(fd):
                try:
                    read()
                except Exception as error:  # the others have to be read nevertheless
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "a connection could not be read", "exception": error}
                    )
