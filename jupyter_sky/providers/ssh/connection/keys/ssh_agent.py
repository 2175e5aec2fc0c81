"""ssh-agent: the one of the environment, or the one that ``IdentityAgent`` names.

This module imports paramiko, so it is only imported when a connection is made.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import paramiko
from paramiko.agent import AgentKey, AgentSSH

from jupyter_sky.providers.ssh.connection.ssh_config import Login

ANSWER_WITHIN = 10.0
"""Seconds in which an agent has to list its keys: the socket may lead to another computer."""

SIGN_WITHIN = 60.0
"""Seconds in which it has to sign: it may ask the user, or wait for the touch of a key."""


class SSHAgent(AgentSSH):  # type: ignore[misc]  # it has no types
    """A connection to an agent, or to none.

    Attributes
    ----------
    refused
        The comments of keys with which it did not sign.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def keys(self) -> list[paramiko.PKey]:
        """Return the keys that it has."""
        return [_AgentKey(self, each.blob, each.comment) for each in self.get_keys()]

    def connect(self, path: str) -> None:
        """Connect to its socket."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_WITHIN)
        try:
            connection.connect(path)
            self._connect(connection)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(SIGN_WITHIN)

    def close(self) -> None:
        """Hang up."""
        self._close()


class _AgentKey(AgentKey):  # type: ignore[misc]
    """A key of an agent, which may refuse to sign with it: then the next key is tried."""

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        try:
            return bytes(super().sign_ssh_data(data, algorithm))
        except (paramiko.SSHException, OSError):
            # The error would end the connection; what is no signature is refused by the server.
            self.agent.refused.append(self.comment or self.get_name())
            return b""

    def __copy__(self) -> _AgentKey:
        return _AgentKey(self.agent, self.blob, self.comment)


def opened(login: Login) -> SSHAgent:
    """Return a connection to the user's agent; one without keys if it cannot be used."""
    agent = SSHAgent()
    if not login.use_agent:
        return agent
    path = login.agent_socket or os.environ.get("SSH_AUTH_SOCK")
    # It may be gone, as after a login from elsewhere, or be something else.
    with contextlib.suppress(paramiko.SSHException, OSError):
        if path and sys.platform != "win32":
            agent.connect(path)
        elif sys.platform == "win32":
            from paramiko.agent import get_agent_connection

            if connection := get_agent_connection():
                agent._connect(connection)
    return agent
