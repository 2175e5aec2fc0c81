"""Breaking a collective that waits for a peer, without losing the rank.

What is wanted: a rank that is blocked in an all-reduce, because a peer has failed or was stopped,
returns to Python within a moment, with an error that its code can handle, and with all its
variables.

What does not work:

- A signal. The main thread waits in C++, and Python runs no signal handler until that returns.
- Destroying the group from another thread. NCCL has an abort for that; gloo has none, and
  continues to wait.
- torch's time-out of collectives. It is minutes, for good reason: a short one would break
  collectives that are merely slow.
- Closing the group's file descriptors. A thread that polls a descriptor is not woken when another
  one closes it, and the next file to be opened gets its number: gloo would read from that.
- Shutting the group's connections down in both directions, or letting gloo close them at once. The
  write of a peer that is about to send then fails. gloo takes that for a full buffer and keeps the
  data; when it finds the connection closed, it notifies all waiters except this one
  (``Pair::write`` and ``Pair::signalException`` in gloo/transport/tcp/pair.cc). That rank stays in
  the collective until torch's time-out. This happened once in a hundred times, and mostly when a
  host had been cut off and came back.

The solution: another thread of the same process shuts the connections of the group down for reading
(``shutdown(SHUT_RD)``). To gloo this looks as if the peer had died: the collective raises an error
in the main thread, and the group can be destroyed and formed anew. Until then, a second descriptor
keeps each connection open, so that peers can still send to this rank; they are told to break the
collective on their own.

torch does not tell which sockets belong to the group, so they are looked up in ``/proc``. The
user's own connections must not be touched: within this machine, only connections whose other end is
a socket of another rank count, and otherwise only those that lead to a node of the cluster.

While a group forms, a rank may also wait for a peer that has published its address and was killed
before it connected. gloo waits for it on a condition variable, until its time-out. So connections
are made to the listening sockets that gloo has opened for the group, one for each pair number that
a peer would announce, and closed: again as if the peer had died, this time just after connecting.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from jupyter_sky.node.network.tcp_table import Endpoint, endpoint, tcp_sockets
from jupyter_sky.node.rank.group import jax_connection, torch_groups

_TCP = (socket.AF_INET, socket.AF_INET6)
_PAIR = struct.Struct("=q")  # a connection to gloo begins with the number of its pair
_CONNECT_WITHIN = 1.0

_broken: dict[str, socket.socket] = {}
"""Connections of the group that were shut down, by inode."""


def break_group(
    siblings: Iterable[int], addresses: Iterable[str], store: Endpoint | None = None
) -> bool:
    """Release this process from a collective that it may be blocked in.

    Parameters
    ----------
    siblings
        Process ids of the other ranks on this machine.
    addresses
        Addresses of the other machines of the cluster.
    store
        Where ranks meet to form a group, if this process may be doing so: it may be waiting there
        for peers that are gone.

    Returns
    -------
    bool
        Whether there was a group to break, which has to be formed again; JAX's cannot be.
    """
    distributed = sys.modules.get("torch.distributed")
    is_formed = distributed is not None and bool(distributed.is_initialized() or store)
    kept = None if store else jax_connection.coordinator_port()
    if not is_formed and kept is None:
        return False
    if distributed is not None and distributed.is_initialized():
        with contextlib.suppress(Exception):  # of any kind: the sockets are closed below
            torch_groups.abort_nccl()
    siblings_sockets = {inode for pid in siblings for _, inode in _sockets(pid)}
    owners = {(each.local, each.remote): each.inode for each in tcp_sockets()}
    remote = set(addresses)
    for fd, inode in _sockets(os.getpid()):
        with contextlib.suppress(OSError), _duplicate(fd) as sock:
            if sock.family not in _TCP or inode in _broken:
                continue
            ours, theirs = endpoint(sock.getsockname()), endpoint(sock.getpeername())
            if store in (theirs, ours):
                sock.shutdown(socket.SHUT_RDWR)
            elif kept in (theirs[1], ours[1]):
                continue
            elif owners.get((theirs, ours)) in siblings_sockets or theirs[0] in remote:
                sock.shutdown(socket.SHUT_RD)
                _broken[inode] = sock.dup()
    return is_formed


def close_broken() -> None:
    """Close the connections that `break_group` shut down, once no rank is in the collective."""
    while _broken:
        _broken.popitem()[1].close()


def listening_sockets() -> dict[str, int]:
    """Return the descriptors, by inode, of the TCP sockets on which this process listens."""
    found = {}
    for fd, inode in _sockets(os.getpid()):
        with contextlib.suppress(OSError), _duplicate(fd) as sock:
            if sock.family in _TCP and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found[inode] = fd
    return found


def release_waiting_pairs(before: Collection[str], peers: int) -> None:
    """Stop waiting for peers that do not connect while this process forms a group.

    Parameters
    ----------
    before
        The inodes of the sockets on which it listened before.
    peers
        The number of other ranks in the group.
    """
    for inode, fd in listening_sockets().items():
        if inode in before:
            continue
        with contextlib.suppress(OSError):
            with _duplicate(fd) as listener:
                where = listener.getsockname()[:2]
            for pair in range(peers + 1):
                with socket.create_connection(where, timeout=_CONNECT_WITHIN) as sock:
                    sock.sendall(_PAIR.pack(pair))


def _duplicate(fd: int) -> socket.socket:
    """Return a new socket for a descriptor, which can be closed without closing the latter."""
    return socket.socket(fileno=os.dup(fd))


def _sockets(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the descriptor and the inode of each socket of a process."""
    folder = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield int(entry.name), target[8:-1]
