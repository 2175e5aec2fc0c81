"""The agent's end of the socket to the fork server: asks it for ranks, and hears how they end."""

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
    """Who is told what the fork server says."""

    def on_imported(self, versions: dict[str, str], missing: dict[str, str]) -> None:
        """The fork server is ready: ``versions`` it has, and why some modules are ``missing``."""

    def on_forked(self, process: RankProcess) -> None:
        """A rank that was asked for has a process now."""

    def on_not_forked(self, process: RankProcess, reason: str) -> None:
        """There is no process for a rank that was asked for, because of ``reason``."""

    def on_exited(self, pid: int, status: int) -> None:
        """The process of a rank has ended; ``status`` is negative for a signal."""

    def on_fork_server_lost(self) -> None:
        """The fork server has ended, and all ranks with it."""


class ForkClient:
    """Asks the fork server for processes.

    Parameters
    ----------
    sock
        The agent's end of the socket; its owner closes it.
    listener
        Who is told what the fork server says.
    """

    def __init__(self, sock: socket.socket, listener: ForkListener) -> None:
        self._sock = sock
        self._listener = listener
        self._requested: deque[RankProcess] = deque()

    def start(self) -> None:
        """Listen to the fork server from now on, in the running loop."""
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._receive)

    def fork(self, process: RankProcess, env: Mapping[str, str]) -> None:
        """Ask for a process; it comes when the fork server has imported what it should.

        Raises
        ------
        OSError
            When the system has no descriptors for what leads to it.
        """
        request: ForkRequest = {"rank": process.rank, "env": dict(env)}
        with process.descriptors() as fds:
            socket.send_fds(self._sock, [msgpack.packb(request)], fds)
        self._requested.append(process)

    def is_forking(self, process: RankProcess) -> bool:
        """Return whether a process was asked for, and has not come yet."""
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
            # The fork server answers in the order in which it is asked.
            process = self._requested.popleft()
            process.pid = message["pid"]
            self._listener.on_forked(process)
        elif "not_forked" in message:
            self._listener.on_not_forked(self._requested.popleft(), message["reason"])
        elif "exited" in message:
            self._listener.on_exited(message["exited"], message["status"])
        else:
            self._listener.on_imported(message["prepared"], message["missing"])
