"""The Unix socket on which an agent waits for clients of the same user."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.node.network.acceptor import Acceptor

_ROOT = 0


def listen(path: Path, on_connect: Callable[[socket.socket], None]) -> Acceptor:
    """Listen on a Unix socket, in the running loop.

    Parameters
    ----------
    path
        The path of the socket; only its owner may open it.
    on_connect
        Called for each connection by this user or root.

    Returns
    -------
    Acceptor
        The acceptor, to be closed in the end.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()

    def let_in(sock: socket.socket) -> None:
        if _user_of(sock) in (os.getuid(), _ROOT):
            on_connect(sock)
        else:
            sock.close()

    return Acceptor(listener, let_in)


def _user_of(sock: socket.socket) -> int:
    """Return the id of the user at the other end of a Unix socket."""
    credentials = struct.Struct("3i")  # process, user, group
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(packed)[1])
