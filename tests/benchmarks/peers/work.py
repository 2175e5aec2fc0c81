"""What the measured processes do; they import it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_PAGE = 512  # 64-bit numbers of one page of memory


def nothing() -> None:
    """Do nothing."""


def look(array: np.ndarray) -> int:
    """Touch every page of an array, so that all of it has to be here."""
    return int(array[::_PAGE].sum())


def join(rank: int, ranks: int, port: int) -> int:
    """Form a process group and return its size."""
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    return dist.get_world_size()


def free_port() -> int:
    """Return a port for ``join``; whoever uses it has to be quick."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
