"""The agent's client of the fork server: requests ranks, and is notified of their ends."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgpack

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.rank_messages import ForkRequest, ForkServerMessage


class ForkListener(Protocol):
    """Receives the notifications of the fork server."""

    def on_imported(self, versions: dict[str, str], missing: dict[str, str]) -> None:
        """The fork server is ready, with its ``versions``, and why some modules are ``missing``."""

    def on_forked(self, process: RankProcess) -> None:
        """A requested rank has been forked."""

    def on_not_forked(self, process: RankProcess, reason: str) -> None:
        """A requested rank could not be forked, because of ``reason``."""

    def on_exited(self, pid: int, status: int) -> None:
        """The process of a rank has ended; ``status`` is negative for a signal."""

    def on_fork_server_lost(self) -> None:
        """The fork server has ended, and all ranks with it."""


class ForkClient:
    """Requests processes from the fork server.

    Parameters
    ----------
    sock
        The agent's end of the socket; its owner closes it.
    listener
        Receives the notifications of the fork server.
    """

    def __init__(self, sock: socket.socket, listener: ForkListener) -> None:
        self._sock = sock
        self._listener = listener
        self._requested: deque[RankProcess] = deque()

    def start(self) -> None:
        """Start to listen to the fork server, in the running loop."""
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._receive)

    def fork(self, process: RankProcess, env: Mapping[str, str]) -> None:
        """Request a process; it is forked once the fork server has imported its modules.

        Raises
        ------
        OSError
            If no descriptors are left for its sockets and pipes.
        """
        request: ForkRequest = {"rank": process.rank, "env": dict(env)}
        with process.descriptors() as fds:
            socket.send_fds(self._sock, [msgpack.packb(request)], fds)
        self._requested.append(process)

    def is_forking(self, process: RankProcess) -> bool:
        """Return whether a requested process has not been forked yet."""
        return process in self._requested

    def _receive(self) -> None:
        while True:
            try:
                data = self._sock.recv(64 * 1024)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._sock)
                self._listener.on_fork_server_lost()
                return
            self._handle(msgpack.unpackb(data))

    def _handle(self, message: ForkServerMessage) -> None:
        if "forked" in message:
            # The fork server answers requests in order.
            process = self._requested.popleft()
            process.pid = message["pid"]
            self._listener.on_forked(process)
        elif "not_forked" in message:
            self._listener.on_not_forked(self._requested.popleft(), message["reason"])
        elif "exited" in message:
            self._listener.on_exited(message["exited"], message["status"])
        else:
            self._listener.on_imported(message["prepared"], message["missing"])
