"""A socket that leads to an SSH channel.

paramiko's channels are no file descriptors, which an event loop could wait for: two threads carry
what is written on one side to the other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

PIECE = 256 * 1024
_BUFFER = 4 * 1024 * 1024


def as_socket(channel: paramiko.Channel, on_close: Callable[[], None]) -> socket.socket:
    """Return a socket that leads to a channel, until one of the two is closed.

    Parameters
    ----------
    on_close
        Called in a thread when both are closed.
    """
    ours, theirs = socket.socketpair()
    for side in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            side.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    up = threading.Thread(target=_upstream, args=(theirs, channel), daemon=True, name="sky-bridge")

    def carry() -> None:
        up.start()
        _downstream(theirs, channel)
        up.join()
        theirs.close()
        on_close()

    threading.Thread(target=carry, daemon=True, name="sky-bridge").start()
    return ours


def _upstream(sock: socket.socket, channel: paramiko.Channel) -> None:
    # Pieces, and no copies of what is left of them: `sendall` of much at once is quadratic.
    buffer = memoryview(bytearray(PIECE))
    with contextlib.suppress(OSError, EOFError):
        while count := sock.recv_into(buffer):
            channel.sendall(buffer[:count])
    # The other thread may wait for a host that is never heard of again.
    with contextlib.suppress(OSError, EOFError):
        channel.close()


def _downstream(sock: socket.socket, channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(PIECE):
            sock.sendall(data)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
