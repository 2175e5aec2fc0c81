"""Breaking a collective that waits for a peer, without losing the rank.

A blocked gloo collective waits in C++, where no Python signal handler runs and no abort reaches
it. What does release it is the end of its connections: a thread of the same process shuts down the
group's sockets, the collective raises, and all variables are kept. NCCL has an abort of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def break_group(
    siblings: Iterable[int], addresses: Iterable[str], store: tuple[str, int] | None = None
) -> bool:
    """Release this process from the collective that it may be blocked in.

    Parameters
    ----------
    siblings
        Process ids of the other ranks on this machine.
    addresses
        Addresses of the other machines of the cluster.
    store
        Where ranks meet to form a group, if this process may be at that: its peers could have gone
        while it waits in the store for them.

    Returns
    -------
    bool
        Whether there was a group to break.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_initialized() or store):
        return False
    if distributed.is_initialized() and distributed.get_backend() == "nccl":
        with contextlib.suppress(Exception):
            distributed.distributed_c10d._abort_process_group()
    siblings_sockets = {inode for pid in siblings for _, inode in _sockets(pid)}
    owners = _owners()
    remote = set(addresses)
    for fd, _ in _sockets(os.getpid()):
        with contextlib.suppress(OSError):
            # A duplicate: closing ours does not close the one that the group holds.
            sock = socket.socket(fileno=os.dup(fd))
            with sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                ours, theirs = _endpoint(sock.getsockname()), _endpoint(sock.getpeername())
                # The person's own connections stay: on this machine only those that end in a
                # sibling are the group's, elsewhere those to a machine of the cluster.
                if (
                    owners.get((theirs, ours)) in siblings_sockets
                    or theirs[0] in remote
                    or store in (theirs, ours)
                ):
                    sock.shutdown(socket.SHUT_RDWR)
    return True


def _sockets(pid: int) -> Iterator[tuple[int, str]]:
    """Yield descriptor and inode of each socket of a process."""
    folder = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield int(entry.name), target[8:-1]


def _endpoint(name: tuple) -> tuple[str, int]:
    return name[0].removeprefix("::ffff:"), name[1]


def _owners() -> dict[tuple[tuple[str, int], tuple[str, int]], str]:
    """Return the inode of each TCP connection of this machine by its two endpoints."""
    owners = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                owners[_parse(fields[1]), _parse(fields[2])] = fields[9]
    return owners


def _parse(text: str) -> tuple[str, int]:
    # The kernel prints addresses as words in the byte order of the machine.
    address, port = text.split(":")
    words = [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return _endpoint((socket.inet_ntop(family, packed), int(port, 16)))
