"""Ways to agents: what `jupyter_sky.node.bridge` and the notebook that starts it share."""

from __future__ import annotations

import os
import socket
import struct

MARK = b"--jupyter-sky--\n"
"""What the bridge prints first: login scripts print what comes before, the agent what follows."""

END = b"--jupyter-sky: end--\n"
"""What a script prints last: after that, only what login scripts have left prints."""

NO_AGENT = 3
"""Exit status of the bridge where there is no agent."""

UP_FOR = ", and its machine up for {} s"
"""What the bridge says last then, if it knows that."""

NOT_OURS = "a program of another user listens there"
"""Why a connection to a port or socket is not made."""

_ROOT = 0


def is_trusted(sock: socket.socket) -> bool:
    """Return whether this user, or root, is at the other end of a Unix socket: listens or connects.

    After a reboot anybody can make a path in /tmp anew that they have seen before.
    """
    credentials = struct.Struct("3i")  # process, user, group
    said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return credentials.unpack(said)[1] in (os.getuid(), _ROOT)
