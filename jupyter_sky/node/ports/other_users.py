"""Whether what listens at a port of this machine is the user's own."""

from __future__ import annotations

import os
import socket

from jupyter_sky.node.network.tcp_table import endpoint, tcp_sockets

_ROOT = 0


def is_of_another_user(sock: socket.socket) -> bool:
    """Return whether another user of this machine has what a TCP connection leads to.

    Whoever comes first listens at a port, also at loopback: what was the user's TensorBoard
    yesterday may be somebody else's page today, and would be shown as the user's own. Root may be
    there, as for ports of containers, and what is on other machines is not known.
    """
    here, there = endpoint(sock.getsockname()), endpoint(sock.getpeername())
    listening, connected = set(), set()
    for each in tcp_sockets():
        if each.is_listening and each.local in (there, ("0.0.0.0", there[1]), ("::", there[1])):
            listening.add(each.user)
        elif (each.local, each.remote) == (there, here):
            connected.add(each.user)
    # Who listens may leave the connections to another user. Nobody may listen any more.
    users = listening or connected
    return bool(users) and users.isdisjoint((os.getuid(), _ROOT))
