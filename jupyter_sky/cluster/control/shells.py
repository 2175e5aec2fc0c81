"""Shells on the nodes of a cluster; for the user's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, cast

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.event_loop import submit, wait
from jupyter_sky.transport.protocol.agent_requests import ReadShellAnswer
from jupyter_sky.transport.tasks import cancel_all

_LINK_WITHIN = 540.0
"""Seconds without a link after which a shell is given up; the node keeps it for longer."""

_CLOSE_WITHIN = 5.0
_AT_ONCE = 2
"""Questions for output that are under way: the node answers while the last answer travels."""

_LOOK_AFTER = 0.5  # seconds


class NodeShells:
    """Opens shells on the nodes of a cluster.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def open(self, rank: int, term: str, rows: int, columns: int) -> Shell:
        """Return a new shell with the environment of a rank, in a terminal of this size.

        Parameters
        ----------
        rank
            The rank.
        term
            The variable ``TERM`` of the user's terminal.
        rows, columns
            The size of that terminal.

        Raises
        ------
        SkyError
            If the node cannot open one, or cannot be reached.
        """
        connection = self._controller.connection(rank)
        size: dict[str, Any] = {"rows": rows, "columns": columns}
        answer = wait(connection.request("open_shell", rank=rank, term=term, **size))
        return Shell(connection, answer["shell"])


class Shell:
    """A shell on a node: its output and the user's input.

    It survives broken links: input and output of the meantime arrive in order.

    Parameters
    ----------
    connection
        The connection to the node's agent.
    number
        The shell's number there.

    Attributes
    ----------
    status
        Its exit status; ``None`` until it has ended.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self.status: int | None = None
        self._connection = connection
        self._number = number
        self._asked: deque[asyncio.Task[ReadShellAnswer]] = deque()

    @property
    def is_reached(self) -> bool:
        """Whether its node is connected at the moment."""
        return self._connection.is_up

    @property
    def host(self) -> str:
        """The user's name for its node."""
        return self._connection.name

    def read(self) -> bytes:
        """Return new output; empty if there is none for a moment.

        Raises
        ------
        SkyError
            If its node is gone, or unreachable for too long.
        """
        return wait(self._read())

    def type(self, data: bytes) -> None:
        """Send it what the user has typed; callable from any thread, without waiting."""
        submit(self._tell("type_in_shell", data=data))

    def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal, without waiting."""
        submit(self._tell("resize_shell", rows=rows, columns=columns))

    def close(self) -> None:
        """End it, unless it has ended."""

        async def close() -> None:
            await cancel_all(self._asked)
            with contextlib.suppress(SkyError):
                await self._connection.request(
                    "close_shell", shell=self._number, within=_CLOSE_WITHIN, link_within=0.0
                )

        wait(close())

    async def _read(self) -> bytes:
        while len(self._asked) < _AT_ONCE:
            self._asked.append(asyncio.ensure_future(self._ask()))
        done, _ = await asyncio.wait({self._asked[0]}, timeout=_LOOK_AFTER)
        if not done:
            return b""
        answer = self._asked.popleft().result()
        self.status = answer["status"]
        if self.status is not None:
            await cancel_all(self._asked)
        return answer["data"]

    async def _ask(self) -> ReadShellAnswer:
        answer = await self._connection.request(
            "read_shell", shell=self._number, link_within=_LINK_WITHIN
        )
        return cast(ReadShellAnswer, answer)

    async def _tell(self, op: str, **fields: Any) -> None:
        # An error that is missed here is raised by `read`.
        with contextlib.suppress(SkyError):
            await self._connection.request(
                op, shell=self._number, link_within=_LINK_WITHIN, **fields
            )
