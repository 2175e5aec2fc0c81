"""paramiko's transport, extended by channels to Unix sockets of the host.

This module imports paramiko, so it is only imported when a connection is made.
"""

from __future__ import annotations

import threading

import paramiko
from paramiko.common import cMSG_CHANNEL_OPEN

_KIND = "direct-streamlocal@openssh.com"
_REQUEST = cMSG_CHANNEL_OPEN + len(_KIND).to_bytes(4, "big") + _KIND.encode()


class Transport(paramiko.Transport):  # type: ignore[misc]  # it has no types
    """An SSH connection over which Unix sockets of the host can be reached."""

    _opening = threading.local()

    def open_stream(self, path: str, window: int, timeout: float) -> paramiko.Channel:
        """Return a channel to a Unix socket, to which the server connects as the user.

        Raises
        ------
        SSHException
            If the server does not support or allow such channels, or nothing listens there.
        """
        self._opening.path = path
        return self.open_channel(_KIND, window_size=window, timeout=timeout)

    def _send_user_message(self, data: paramiko.Message) -> None:
        # paramiko only knows the parameters of its own kinds of channels, so they are added to the
        # request, in the thread that opens the channel.
        if data.asbytes().startswith(_REQUEST):
            data.add_string(self._opening.path)
            data.add_string("")
            data.add_int(0)
        super()._send_user_message(data)
