"""The store at which ranks meet to form torch's process group.

It is our own TCPStore instead of ``env://``: it listens only on the head's address, on a socket
that is already bound, so that no other program can take the port.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.errors import SkyError

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

_CONNECT_WITHIN = 2.0  # seconds, for each attempt


def make_store(info: InstanceInfo, deadline: float) -> Store:
    """Return the store at which ranks meet, once this rank is connected with it.

    Parameters
    ----------
    info
        The position of this rank.
    deadline
        Seconds to wait for the head.

    Raises
    ------
    SkyError
        If the head cannot be reached within that time.
    """
    import torch.distributed as dist

    connect = partial(
        dist.TCPStore,
        info.head_addr,
        info.head_port,
        info.world_size,
        is_master=info.is_head,
        wait_for_workers=False,
        multi_tenant=True,  # what meets by `env://`, like torch's RPC, meets at this server
        use_libuv=_libuv_takes_sockets(),
    )
    if info.is_head:
        # The store owns the socket from now on, and closes it with the group. Without one, it takes
        # the server that this process has at that port.
        fd = _listening_socket(info)
        store = connect(timeout=timedelta(seconds=deadline), master_listen_fd=fd)
    else:
        store = _connected(info, connect, deadline)
    return dist.PrefixStore(f"generation {info.generation}", store)


def _libuv_takes_sockets() -> bool:
    """Return whether the faster of torch's two servers accepts a socket that is already bound."""
    return torch_version() >= (2, 8)


def torch_version() -> tuple[int, int]:
    """Return the major and minor version of torch."""
    from torch import __version__

    major, minor, *_ = __version__.split(".")
    return int(major), int(minor)


def _connected(info: InstanceInfo, connect: Callable[..., TCPStore], deadline: float) -> TCPStore:
    """Return the head's store, once the head listens.

    TCPStore retries in C++, where no interrupt reaches it, until its time-out, although the head
    may have left again. So each attempt gets little time.
    """
    import torch.distributed as dist

    until = time.monotonic() + deadline
    while True:
        _await_head(info, max(until - time.monotonic(), 0.1))
        try:
            store = connect(timeout=timedelta(seconds=_CONNECT_WITHIN))
        except dist.DistError:
            if time.monotonic() > until:
                raise
        else:
            store.set_timeout(timedelta(seconds=deadline))
            return store


def _listening_socket(info: InstanceInfo) -> int | None:
    """Return the socket that the rank bound for this formation, or a new one at that address.

    There is ``None`` as long as something refers to the former group, as a model in a global
    variable does: then the server of that group still listens there.
    """
    descriptor = os.environ.pop("JUPYTER_SKY_HEAD_FD", None)
    if descriptor is not None:
        return int(descriptor)
    family = socket.AF_INET6 if ":" in info.head_addr else socket.AF_INET
    address = (info.head_addr, info.head_port)
    try:
        return socket.create_server(address, family=family, backlog=info.world_size).detach()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


def _await_head(info: InstanceInfo, deadline: float) -> None:
    """Wait until the head listens: TCPStore would, too, but logs a C++ stack each time."""
    until = time.monotonic() + deadline
    pause = 0.01
    while True:
        try:
            remaining = max(until - time.monotonic(), 0.1)
            socket.create_connection((info.head_addr, info.head_port), timeout=remaining).close()
        except OSError as error:
            if time.monotonic() + pause > until:
                raise SkyError(
                    f"rank {info.rank} cannot reach the head at {info.head_addr}:{info.head_port} "
                    f"within {deadline:g} s ({error.strerror or error}): check that rank 0 is "
                    f"running and that the nodes can connect to each other."
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        else:
            return
