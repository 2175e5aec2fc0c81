"""What stands for `nc`: carries its input to a port and what comes back to its output.

It takes nothing of the project, so that it starts at once: ``python -S -E relay.py ADDRESS PORT``.
"""

from __future__ import annotations

import os
import select
import socket
import sys

_PIECE = 65536
_WITHIN = 2.0  # seconds for a connection; a host that boots may lose what is sent to it


def carry(address: str, port: int) -> None:
    """Carry bytes until one of the two sides ends."""
    with socket.create_connection((address, port), _WITHIN) as sock:
        sock.settimeout(None)
        while True:
            ready, _, _ = select.select([0, sock], [], [])
            if 0 in ready:
                if not (data := os.read(0, _PIECE)):
                    return
                sock.sendall(data)
            if sock in ready:
                if not (data := sock.recv(_PIECE)):
                    return
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    carry(sys.argv[1], int(sys.argv[2]))
