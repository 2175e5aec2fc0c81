"""Connects standard input and output to the socket of an agent.

The notebook runs ``python -m jupyter_sky.node.bridge SOCKET`` on a node over SSH. It ends when
either side does. One is started for each connection, so it imports next to nothing.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from jupyter_sky.transport.bridge import MARK, NO_AGENT, NOT_OURS, UP_FOR, is_trusted

_PIECE = 256 * 1024


def to_agent(path: str) -> int:
    """Connect to an agent."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sys.stderr.write(f"the agent is gone{_age_of_machine()}")
        return NO_AGENT
    if not is_trusted(sock):
        sys.stderr.write(f"the agent is gone, and {NOT_OURS}")
        return NO_AGENT
    return _carry(sock)


def _age_of_machine() -> str:
    """Say for how long the machine, or the container, is up: since its first process began."""
    from pathlib import Path

    from jupyter_sky.node.process_stat import stat_fields

    try:
        began = int(stat_fields("/proc/1")[19]) / os.sysconf("SC_CLK_TCK")
        passed = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return ""
    # Whole seconds that have passed: a machine that began after it was heard of is up for less.
    return UP_FOR.format(max(0, int(passed - began)))


def _carry(sock: socket.socket) -> int:
    """Carry bytes both ways until one side ends."""
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
        # The notebook is gone, so nobody reads what the agent still sends.
        os._exit(0)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    try:
        sys.exit(to_agent(sys.argv[1]))
    except OSError:
        sys.exit(1)
