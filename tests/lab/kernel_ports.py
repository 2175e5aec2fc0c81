"""Ports for the kernels of tests, which nobody else is given before a kernel has taken them.

A port is chosen for a kernel some time before it listens there. Several processes run tests, and
the system gives ports to all that they start: now and then it gave one of a kernel away, which
ended then. A Jupyter server starts such a kernel again at other ports, but the page that waits for
it is told nothing of them, and waits for ever.

``python -m tests.lab.kernel_ports jupyterlab ...`` runs a Jupyter server whose kernels have such
ports.
"""

from __future__ import annotations

import itertools
import runpy
import socket
import sys
from pathlib import Path

_FIRST, _EACH = 10_000, 500  # ports of the first process that starts kernels, and of each

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

_held: list[socket.socket] = []


def reserve() -> None:
    """Let kernels that this process starts have ports that only this process gives."""
    from jupyter_client.connect import LocalPortCache

    end = int(_EPHEMERAL.read_text().split()[0])  # from there on the system gives them to anybody
    mine = next((each for each in range(_FIRST, end - _EACH, _EACH) if _is_mine(each)), None)
    if mine is None:
        return
    ports = itertools.cycle(range(mine, mine + _EACH))

    def find_available_port(cache: LocalPortCache, ip: str) -> int:
        return next(port for port in ports if _is_free(ip, port))

    LocalPortCache.find_available_port = find_available_port


def _is_mine(first: int) -> bool:
    """Return whether these ports are for this process, until it ends: its name for them is held."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(f"\0jupyter-sky-kernel-ports-{first}")
    except OSError:
        sock.close()
        return False
    _held.append(sock)
    return True


def _is_free(ip: str, port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind((ip, port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    reserve()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
