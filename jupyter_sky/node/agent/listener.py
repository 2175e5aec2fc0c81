"""The Unix socket on which an agent waits for clients of the same user."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.node.network.acceptor import Acceptor
from jupyter_sky.transport.bridge import is_trusted


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
        if is_trusted(sock):
            on_connect(sock)
        else:
            sock.close()

    return Acceptor(listener, let_in)
