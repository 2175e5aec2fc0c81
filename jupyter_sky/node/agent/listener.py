"""The Unix socket on which an agent waits for clients of the same user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

_ROOT = 0


def listen(path: Path, on_connect: Callable[[socket.socket], None]) -> socket.socket:
    """Listen on a Unix socket, in the running loop.

    Parameters
    ----------
    path
        Where the socket is made; only its owner may open it.
    on_connect
        Called for each connection of this user or of root.

    Returns
    -------
    socket.socket
        The listening socket, to close in the end.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()
    listener.setblocking(False)
    asyncio.get_running_loop().add_reader(listener, _accept, listener, on_connect)
    return listener


def _accept(listener: socket.socket, on_connect: Callable[[socket.socket], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        sock, _ = listener.accept()
        if _user_of(sock) in (os.getuid(), _ROOT):
            on_connect(sock)
        else:
            sock.close()


def _user_of(sock: socket.socket) -> int:
    """Return the id of the user at the other end of a Unix socket."""
    credentials = struct.Struct("3i")  # process, user, group
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(packed)[1])
