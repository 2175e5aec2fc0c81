"""The port on which the ranks of a group, or the processes of a script, meet the head."""

from __future__ import annotations

import os
import socket

_DESCRIPTOR = "JUPYTER_SKY_HEAD_FD"


class HeadPort:
    """A port that the head listens on before any rank is told its number.

    Since it is really listening, on the group's address, no other program can take the port in
    between.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def reserve(self, addr: str) -> int:
        """Listen on a free port of an address, instead of the previous one; return the port."""
        self.release()
        family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        self._socket = socket.create_server((addr, 0), family=family, backlog=1024)
        return int(self._socket.getsockname()[1])

    def hand_over(self) -> None:
        """Hand the descriptor over to the plugin that forms the group."""
        if self._socket is None:
            os.environ.pop(_DESCRIPTOR, None)
            return
        os.environ[_DESCRIPTOR] = str(self._socket.detach())
        self._socket = None

    def release(self) -> None:
        """Stop listening, so that others can."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
