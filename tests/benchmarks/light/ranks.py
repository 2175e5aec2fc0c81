"""What stands in for a fork server and its ranks: they answer at once, and compute nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgpack

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.link import Link
from jupyter_sky.transport.protocol.events import Formed, RankDone
from jupyter_sky.transport.protocol.versions import versions

NO_PROCESS = 2**22
"""Process ids from here on belong to nobody: the system gives smaller ones."""

_DESCRIPTORS = 6


class LightForkServer:
    """The far end of an agent's socket to its fork server, in the agent's own loop.

    Parameters
    ----------
    sock
        That end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ranks: list[LightRank] = []
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock, self._receive)
        self._answer({"prepared": versions(), "missing": {}})

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, 256 * 1024, _DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            for rank in self._ranks:
                rank.close()
            return
        number = msgpack.unpackb(data)["rank"]
        pid = NO_PROCESS + number
        self._ranks.append(LightRank(number, fds, lambda: self._on_end(pid)))
        self._answer({"forked": number, "pid": pid})

    def _on_end(self, pid: int) -> None:
        self._answer({"exited": pid, "status": 0})

    def _answer(self, message: Message) -> None:
        self._sock.send(msgpack.packb(message))


class LightRank:
    """A rank that prints as many lines as its cell says, and is done.

    Parameters
    ----------
    number
        Its number.
    fds
        What an agent gives a rank: two sockets, three pipes, a file.
    on_end
        Called when it was told to end.
    """

    def __init__(self, number: int, fds: list[int], on_end: Callable[[], None]) -> None:
        commands, side, self._out, err, log, stacks = fds
        for fd in (side, err, log, stacks):
            os.close(fd)
        self._number = number
        self._on_end = on_end
        self._link = Link(socket.socket(fileno=commands), self._receive, lambda: None)

    def close(self) -> None:
        """Close what leads to the agent."""
        self._link.close()
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def _receive(self, command: Message, payload: memoryview) -> None:
        match command["op"]:
            case "run":
                lines = int(command["code"])
                text = "".join(f"rank {self._number}, line {line}\n" for line in range(lines))
                os.write(self._out, text.encode())
                done = RankDone(self._number, command["run"], "ok", arrived=[])
                self._link.send(done.message())
            case "form":
                formed = Formed(self._number, command["topology"]["generation"], None)
                self._link.send(formed.message())
            case "reserve":
                self._link.send({"reserved": command["number"], "port": 1})
            case "end":
                self.close()
                self._on_end()
