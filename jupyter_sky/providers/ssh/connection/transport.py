"""paramiko's transport, extended by channels to Unix sockets of the host, and by patience.

This module imports paramiko, so it is only imported when a connection is made.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import ClassVar

import paramiko
from paramiko.common import cMSG_CHANNEL_OPEN, cMSG_GLOBAL_REQUEST

from jupyter_sky.providers.ssh.connection.errors import HostError, no_answer

_KIND = "direct-streamlocal@openssh.com"
_REQUEST = cMSG_CHANNEL_OPEN + len(_KIND).to_bytes(4, "big") + _KIND.encode()

_CURVE = "curve25519-sha256"

_FREED_WITHIN = 2.0
_TRY_EVERY = 0.02  # seconds


class Transport(paramiko.Transport):  # type: ignore[misc]  # it has no types
    """An SSH connection over which Unix sockets of the host can be reached.

    Attributes
    ----------
    own_folders
        Folders of agents there that are known to be the user's own.
    """

    _opening = threading.local()

    # One way to exchange keys has two names, of which paramiko knows the older one.
    _kex_info: ClassVar = dict(paramiko.Transport._kex_info)
    _preferred_kex = tuple(paramiko.Transport._preferred_kex)
    if f"{_CURVE}@libssh.org" in _kex_info and _CURVE not in _kex_info:
        _kex_info[_CURVE] = _kex_info[f"{_CURVE}@libssh.org"]
        _preferred_kex += (_CURVE,)

    def __init__(self, sock: object) -> None:
        super().__init__(sock)
        self.own_folders: set[str] = set()

    @property
    def silent_for(self) -> float:
        """Seconds since anything came from the server."""
        return float(self.sock.silent_for)

    def open_stream(self, path: str, window: int, timeout: float) -> paramiko.Channel:
        """Return a channel to a Unix socket, to which the server connects as the user.

        Raises
        ------
        SSHException
            If the server does not support or allow such channels, or nothing listens there.
        """
        self._opening.path = path
        return self.open_channel(_KIND, window_size=window, timeout=timeout)

    def start_command(self, command: str, window: int, timeout: float) -> paramiko.Channel:
        """Start a command and return the channel to its input and output.

        A server that allows few sessions at a time counts one for some moments after its end.

        Raises
        ------
        HostError
            If the server does not start it.
        """
        until = time.monotonic() + _FREED_WITHIN
        while True:
            try:
                channel = self.open_session(window_size=window, timeout=timeout)
                channel.settimeout(timeout)
                channel.exec_command(command)
                return channel
            except paramiko.ChannelException:
                if time.monotonic() > until:
                    raise HostError(
                        "it allows no more commands at a time on a connection: raise MaxSessions "
                        "in its sshd_config"
                    ) from None
            except paramiko.SSHException as error:
                if self.silent_for >= timeout:
                    raise HostError(no_answer(timeout)) from None
                raise HostError(f"it takes no more commands ({error})") from None
            time.sleep(_TRY_EVERY)

    def keep_alive(self, interval: float) -> None:
        """Ask the server for a sign of life whenever nothing was sent for so many seconds.

        paramiko's own `set_keepalive` asks for no answer, so it never learns that there is none.
        """
        ours = weakref.proxy(self)
        self.packetizer.set_keepalive(interval, lambda: ours.ask_for_sign_of_life())

    def ask_for_sign_of_life(self) -> None:
        """Send what every server answers, if only with a refusal, and do not wait for it."""
        if not self.clear_to_send.is_set():
            return  # keys are exchanged, by this thread: it would wait for itself until it gives up
        request = paramiko.Message()
        request.add_byte(cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        self._send_user_message(request)

    def answers(self, timeout: float) -> bool:
        """Return whether the server answers, if only with a refusal."""
        try:
            self.open_session(timeout=timeout).close()
        except paramiko.ChannelException:
            return True
        except Exception:  # of any kind, as paramiko passes on what has ended its thread
            return False
        return True

    def _send_user_message(self, data: paramiko.Message) -> None:
        # paramiko only knows the parameters of its own kinds of channels, so they are added to the
        # request, in the thread that opens the channel.
        if data.asbytes().startswith(_REQUEST):
            data.add_string(self._opening.path)
            data.add_string("")
            data.add_int(0)
        super()._send_user_message(data)
