"""Connects standard input and output with the socket of an agent.

``python -m jupyter_sky.node.bridge SOCKET`` is what the notebook runs on a node over SSH. It ends
when either side does. One is started for each connection, so it imports next to nothing.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from jupyter_sky.transport.protocol.bridge import MARK, NO_AGENT

_PIECE = 256 * 1024


def main(path: str) -> int:
    """Carry bytes both ways until one side ends."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sys.stderr.write("there is no agent any more")
        return NO_AGENT
    os.write(1, MARK)
    threading.Thread(target=_from_input, args=(sock,), daemon=True).start()
    while data := sock.recv(_PIECE):
        _write(data)
    return 0


def _from_input(sock: socket.socket) -> None:
    try:
        while data := os.read(0, _PIECE):
            sock.sendall(data)
    finally:
        # The notebook is gone, and with it the reader of what the agent still sends.
        os._exit(0)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except OSError:
        sys.exit(1)
