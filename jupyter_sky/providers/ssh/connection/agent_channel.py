"""Channels to an agent: to its socket, or to a bridge that a command starts.

The server connects to the socket itself, if it supports and allows that. Otherwise a bridge process
carries all bytes; it also reports what is wrong if there is no agent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jupyter_sky.formatting import for_terminal, format_bytes
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.ssh.connection.channel_socket import read
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.ssh_config import CONNECT_WITHIN
from jupyter_sky.transport.bridge import MARK, NO_AGENT, UP_FOR

if TYPE_CHECKING:
    import paramiko

    from jupyter_sky.providers.ssh.connection.transport import Transport

WINDOW = 4 * 1024 * 1024
"""Bytes that a host may send ahead; OpenSSH's server takes time for them that grows with their
square."""

_UP_FOR = re.compile(UP_FOR.format(r"(\d+)") + "$")

_MOST_GREETED = 64 * 1024  # most bytes that login scripts may print


def open_stream(transport: Transport, path: str) -> paramiko.Channel | None:
    """Return a channel to the socket of an agent; ``None`` if the server does not open one.

    Raises
    ------
    HostError
        If the connection breaks.
    """
    import paramiko

    try:
        return transport.open_stream(path, WINDOW, CONNECT_WITHIN)
    except paramiko.ChannelException:
        return None
    except (paramiko.SSHException, EOFError) as error:
        raise HostError(f"its agent did not answer ({error})") from None


def await_bridge(channel: paramiko.Channel) -> None:
    """Read a bridge's output until it reports that it is connected.

    Raises
    ------
    AgentGone
        If the agent is gone.
    HostError
        If the bridge reports another error, or does not start.
    OSError
        If it does not answer.
    """
    channel.settimeout(CONNECT_WITHIN)
    seen = b""
    while missing := _missing(seen):
        # No more than that, as the agent's own bytes follow.
        if not (part := channel.recv(missing)):
            break
        seen += part
        if len(seen) > _MOST_GREETED:
            much = format_bytes(_MOST_GREETED)
            raise HostError(f"its login scripts printed more than {much}")
    else:
        channel.settimeout(None)
        return
    status = channel.recv_exit_status()
    said = for_terminal(read(channel.recv_stderr).decode(errors="replace")).strip()
    if status == NO_AGENT:
        raise AgentGone(said, float(up[1]) if (up := _UP_FOR.search(said)) else None)
    raise HostError(f"the bridge to its agent did not start: {said or status}")


def _missing(seen: bytes) -> int:
    """Return how many bytes have to come at least until all that has come ends with the mark."""
    return next(left for left in range(len(MARK) + 1) if seen.endswith(MARK[: len(MARK) - left]))
