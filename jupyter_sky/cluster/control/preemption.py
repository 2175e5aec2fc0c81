"""Nodes that are about to be taken away: what the person is told, with the time that is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.transport.events import Leaving

_SAID_EVERY = 10  # seconds

_FATES = {"terminate": "taken away", "stop": "stopped", "hibernate": "put to sleep"}


class Departures:
    """What is known of nodes that will leave.

    Parameters
    ----------
    spawn
        Has a coroutine run in the background.
    notice
        Told what the person should know.
    wake
        Called when what there is to say has changed, as it does every second.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        notice: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._spawn = spawn
        self._notice = notice
        self._wake = wake
        self._leaving: dict[Connection, Leaving] = {}

    @property
    def note(self) -> str:
        """What there is to say of them; empty if none leaves."""
        there = (each for each in self._leaving.items() if not each[0].is_over)
        return "; ".join(_described(connection, event) for connection, event in there)

    def see(self, connection: Connection, event: Leaving) -> None:
        """Take note that a node will leave."""
        is_new = self._leaving.get(connection) != event
        self._leaving[connection] = event
        if is_new:
            self._notice(self.note)
            if event.at is not None:
                self._spawn(self._count_down(connection, event.at))

    async def _count_down(self, connection: Connection, until: float) -> None:
        while not connection.is_over and (left := until - time.time()) > 0:
            await asyncio.sleep(min(1.0, left))
            self._wake()
            # A terminal cannot change a line that it has shown, as a notebook does.
            if round(left) % _SAID_EVERY == 0:
                self._notice(self.note)


def _described(connection: Connection, event: Leaving) -> str:
    if event.at is None:
        return f"AWS recommends to leave {connection.name}, which it may take away soon"
    left = max(0, round(event.at - time.time()))
    fate = _FATES.get(event.kind, event.kind)
    return f"{connection.name} will be {fate} by AWS in {left // 60}:{left % 60:02}"
