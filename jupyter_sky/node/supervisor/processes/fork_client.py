"""The agent's client of the fork server: requests ranks, and is notified of their ends.

A fork server may hang, as where it looks at a process that waits for a network drive. So what it
does not say for a while is found out, or said to the user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgpack

from jupyter_sky.node.process_stat import stat_fields
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.rank_messages import ForkRequest, ForkServerMessage

ANSWERS_WITHIN = 10.0
"""Seconds after which a fork server that says nothing is taken to hang."""


class ForkListener(Protocol):
    """Receives the notifications of the fork server."""

    def on_imported(self, versions: dict[str, str], missing: dict[str, str]) -> None:
        """The fork server is ready, with its ``versions``, and why some modules are ``missing``."""

    def on_forked(self, process: RankProcess) -> None:
        """A requested rank has been forked."""

    def on_not_forked(self, process: RankProcess, reason: str) -> None:
        """A requested rank could not be forked, because of ``reason``."""

    def on_late(self, process: RankProcess) -> None:
        """The fork server does not answer the request for a rank."""

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
        self._is_ready = False
        self._looking: asyncio.TimerHandle | None = None
        self._since = 0.0  # when it was asked last, or has answered

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
        self._expect_answer()

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
            process.on_hung_up = self._on_hung_up
            self._listener.on_forked(process)
        elif "not_forked" in message:
            self._listener.on_not_forked(self._requested.popleft(), message["reason"])
        elif "exited" in message:
            self._listener.on_exited(message["exited"], message["status"])
        else:
            self._is_ready = True
            self._listener.on_imported(message["prepared"], message["missing"])
        if self._requested:
            self._expect_answer()

    # What it does not say

    def _expect_answer(self) -> None:
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if self._looking is None:
            self._looking = loop.call_later(ANSWERS_WITHIN, self._look)

    def _look(self) -> None:
        """Report that requested ranks do not come, once until there is an answer."""
        self._looking = None
        loop = asyncio.get_running_loop()
        left = self._since + ANSWERS_WITHIN - loop.time() if self._is_ready else ANSWERS_WITHIN
        if not self._requested:
            return
        if left > 0:
            self._looking = loop.call_later(left, self._look)
            return
        for process in self._requested:
            self._listener.on_late(process)

    def _on_hung_up(self, process: RankProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(ANSWERS_WITHIN, self._check_end, process, process.pid)

    def _check_end(self, process: RankProcess, pid: int | None) -> None:
        """Find out how a rank has ended that hung up, unless the fork server has said it."""
        if pid is not None and process.pid == pid:
            status = _status_of_ended(pid)
            if status is not None:
                self._listener.on_exited(pid, status)


def _status_of_ended(pid: int) -> int | None:
    """Return the exit status of a process that has ended, but has not been waited for."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = stat_fields(f"/proc/{pid}")
        if fields[0] == "Z":  # the status is the last field
            return os.waitstatus_to_exitcode(int(fields[-1]))
    return None
