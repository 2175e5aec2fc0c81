"""The connections that users have to ports, and the requests to them.

A connection is the agent's, and outlives each link to the user's side, which polls what comes from
the port. So a broken link only costs time, where a program would take its end for the other side's.
One that is no longer polled has lost its user, and is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable

from jupyter_sky.node.ports.port_connection import PortConnection
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.ports.requests import (
    OpenPortRequest,
    PortRequest,
    ReadPortAnswer,
    ReadPortRequest,
    WritePortRequest,
)
from jupyter_sky.transport.protocol.agent_requests import Handlers

GONE_AFTER = 600.0
"""Seconds in which nobody asks for what comes from a port, after which its user has gone.

A laptop that was closed for minutes comes back. What a killed notebook had begun goes on as long.
"""

RETURNS_WITHIN = 30.0
"""The same where the link did not fall silent, but was closed: most likely the notebook has ended.

What it had begun, as with Dask, is not to keep the node from the notebook's next kernel.
"""

_SILENT = 3.0  # seconds; notebooks give a sign of life each second
_MOST = 256
_LOOK_EVERY = 10.0
_CLOSED = "this connection was closed: nobody has asked for what came over it."


class Ports:
    """The connections of a node to ports.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, PortConnection] = {}
        self._clients: dict[int, str] = {}
        self._closed: set[str] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self.handlers: Handlers = {
            "open_port": self._on_open,
            "read_port": self._on_read,
            "write_port": self._on_write,
            "close_port": self._on_close,
        }

    def on_closed(self, client: str, silent_for: float) -> None:
        """Note that the link to a client was closed, which had been silent for some seconds."""
        if silent_for < _SILENT and client in self._clients.values():
            self._closed.add(client)
        else:
            self._closed.discard(client)

    def end(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in self._open.values():
            each.close()
        self._open.clear()
        self._clients.clear()

    async def _on_open(self, request: OpenPortRequest) -> Message:
        if len(self._open) >= _MOST:
            return {"error": f"{_MOST} connections to ports are open on this node."}
        addr, port = request["addr"], request["port"]
        try:
            connection = await PortConnection.open(addr, port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            return {"error": f"nothing answers at port {port}: {why}"}
        number = next(self._numbers)
        self._open[number] = connection
        self._clients[number] = request.get("client", "")
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        return {"connection": number}

    async def _on_read(self, request: ReadPortRequest) -> ReadPortAnswer | Message:
        connection = self._open.get(request["connection"])
        if connection is None:
            return {"error": _CLOSED}
        return {"data": await connection.read(request["piece"])}

    def _on_write(self, request: WritePortRequest) -> Message | Awaitable[Message]:
        connection = self._open.get(request["connection"])
        if connection is None:
            return {"error": _CLOSED}
        connection.write(request["data"])  # now, in the order of the requests
        return self._written(connection)

    async def _written(self, connection: PortConnection) -> Message:
        await connection.drain()
        return {}

    def _on_close(self, request: PortRequest) -> Message:
        self._close(request["connection"])
        return {}

    def _close(self, number: int) -> None:
        if connection := self._open.pop(number, None):
            del self._clients[number]
            connection.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            for number, connection in list(self._open.items()):
                has_ended = self._clients[number] in self._closed
                if connection.unread_for > (RETURNS_WITHIN if has_ended else GONE_AFTER):
                    self._close(number)
            self._closed.intersection_update(self._clients.values())
