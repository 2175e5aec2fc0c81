"""The TCP sockets of this machine, as the kernel lists them."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Endpoint = tuple[str, int]
"""Address and port of one end of a connection."""

_LISTENS = "0A"


class TcpSocket(NamedTuple):
    """A socket: both its ends, whether it listens, the id of its user, and its inode."""

    local: Endpoint
    remote: Endpoint
    is_listening: bool
    user: int
    inode: str


def tcp_sockets() -> Iterator[TcpSocket]:
    """Yield the sockets of all processes; none where the system does not list them."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
                yield TcpSocket(_end(local), _end(remote), state == _LISTENS, int(user), inode)


def endpoint(name: tuple[Any, ...]) -> Endpoint:
    """Return an end as a socket names it; that of a socket for both IPs as of version 4."""
    return name[0].removeprefix("::ffff:"), name[1]


def _end(text: str) -> Endpoint:
    # The kernel prints addresses as words in the machine's byte order.
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    packed = struct.pack(f"={len(words)}I", *words)
    return endpoint((socket.inet_ntop(family, packed), int(port, 16)))
