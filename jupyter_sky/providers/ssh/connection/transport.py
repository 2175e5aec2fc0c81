"""paramiko's transport, with what it lacks: a channel that leads to a Unix socket of the host.

This module imports paramiko, and is imported where a connection is made.
"""

from __future__ import annotations

import threading

import paramiko
from paramiko.common import cMSG_CHANNEL_OPEN

_KIND = "direct-streamlocal@openssh.com"
_REQUEST = cMSG_CHANNEL_OPEN + len(_KIND).to_bytes(4, "big") + _KIND.encode()


class Transport(paramiko.Transport):  # type: ignore[misc]  # it has no types
    """An SSH connection over which sockets of the host can be reached."""

    _opening = threading.local()

    def open_stream(self, path: str, window: int, timeout: float) -> paramiko.Channel:
        """Return a channel to a Unix socket, to which the server connects as the user.

        Raises
        ------
        SSHException
            When the server does not know such channels, or allows none, or nothing listens there.
        """
        self._opening.path = path
        return self.open_channel(_KIND, window_size=window, timeout=timeout)

    def _send_user_message(self, data: paramiko.Message) -> None:
        # Of its own kinds alone paramiko knows what a request says beside the kind. It is sent by
        # the thread that opens the channel.
        if data.asbytes().startswith(_REQUEST):
            data.add_string(self._opening.path)
            data.add_string("")
            data.add_int(0)
        super()._send_user_message(data)
