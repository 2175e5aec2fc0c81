"""The ports on which the ranks of a group, or the processes of a script, meet the head."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from pathlib import Path

from jupyter_sky.errors import SkyError

_DESCRIPTOR = "JUPYTER_SKY_HEAD_FD"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Below what Linux usually gives to connections, and what Kubernetes redirects (30000 to 32767).
_FIXED = range(20_000, 29_500)
_ATTEMPTS = 20
_AT_ONCE = 4  # ports


class HeadPorts:
    """Ports that the head listens on before any rank is told their numbers.

    Since it is really listening, on the group's address, no other program can take a port in
    between. A script is only told the number, and listens seconds after the port was released: it
    is outside the range from which the system gives ports to connections meanwhile.

    Of several ports the last is wanted, mostly; but a kernel may have asked for it that is gone.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}

    def reserve(self, addr: str) -> int:
        """Listen on a free port of an address, and return the port.

        Raises
        ------
        SkyError
            If it cannot listen there.
        """
        while len(self._sockets) >= _AT_ONCE:
            self._sockets.pop(next(iter(self._sockets))).close()
        try:
            made = _listen(addr)
        except OSError as error:
            raise _no_port(addr, error) from None
        port: int = made.getsockname()[1]
        self._sockets[port] = made
        return port

    def hand_over(self, port: int) -> None:
        """Hand a descriptor over to the plugin that forms the group; release the other ports."""
        os.environ.pop(_DESCRIPTOR, None)
        if made := self._sockets.pop(port, None):
            os.environ[_DESCRIPTOR] = str(made.detach())
        self.release()

    def release(self) -> None:
        """Stop listening, so that others can."""
        while self._sockets:
            self._sockets.popitem()[1].close()


def _listen(addr: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    ports = _fixed_ports()
    # A generator of its own: the user's may be seeded, on all nodes of a host alike.
    for port in random.Random().sample(ports, min(_ATTEMPTS, len(ports))):
        with contextlib.suppress(OSError):  # somebody listens there
            return socket.create_server((addr, port), family=family, backlog=1024)
    return socket.create_server((addr, 0), family=family, backlog=1024)


def _no_port(addr: str, error: OSError) -> SkyError:
    if error.errno == errno.EMFILE:
        advice = "close files that cells have left open there; `%sky restart` closes all"
    else:
        advice = "if the address of its node has changed, end the cluster with `%sky down`"
    return SkyError(f"rank 0 cannot listen on {addr} ({error.strerror or error}): {advice}.")


def _fixed_ports() -> range:
    """Return ports that the system does not give to connections by itself."""
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, _EPHEMERAL.read_text().split())
        if first < _FIXED.stop and last >= _FIXED.start:
            return range(_FIXED.start, max(_FIXED.start, first))
    return _FIXED
