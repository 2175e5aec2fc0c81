"""Whether what listens at a port of this machine is the user's own."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_ROOT = 0
_LISTENS = "0A"


def is_of_another_user(sock: socket.socket) -> bool:
    """Return whether another user of this machine has what a TCP connection leads to.

    Whoever comes first listens at a port, also at loopback: what was the user's TensorBoard
    yesterday may be somebody else's page today, and would be shown as the user's own. Root may be
    there, as for ports of containers, and what is on other machines is not known.
    """
    here, there = (_plain(*end[:2]) for end in (sock.getsockname(), sock.getpeername()))
    listening, connected = set(), set()
    for local, remote, state, user in _connections():
        if state == _LISTENS and local in (there, ("0.0.0.0", there[1]), ("::", there[1])):
            listening.add(user)
        elif (local, remote) == (there, here):
            connected.add(user)
    # Who listens may leave the connections to another user. Nobody may listen any more.
    users = listening or connected
    return bool(users) and users.isdisjoint((os.getuid(), _ROOT))


def _connections() -> Iterator[tuple[tuple[str, int], tuple[str, int], str, int]]:
    """Yield both ends of this machine's TCP sockets, their states, and the ids of their users."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:  # noqa: PTH123 - a bridge imports next to nothing
                lines = file.readlines()[1:]
        except OSError:  # without IPv6, or not Linux
            continue
        for line in lines:
            _, local, remote, state, _, _, _, user, *_ = line.split()
            yield _end(local), _end(remote), state, int(user)


def _end(text: str) -> tuple[str, int]:
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return _plain(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16))


def _plain(address: str, port: int) -> tuple[str, int]:
    """Return an end of a connection; that of a socket for both IPs has the address of version 4."""
    return address.removeprefix("::ffff:"), port
