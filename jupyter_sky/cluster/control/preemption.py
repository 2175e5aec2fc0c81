"""Preemption: nodes that are about to be taken away, and the countdown for the user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.transport.protocol.events import Leaving

_REPEAT_EVERY = 10  # seconds

_ENDS_WITHIN = 60  # seconds from when a node was to end until it is silent

_SPENT = "spent"
_FATES = {"terminate": "taken away", "stop": "stopped", "hibernate": "put to sleep"}


class PreemptionMonitor:
    """The nodes of a cluster that will be taken away.

    Parameters
    ----------
    spawn
        Runs a coroutine in the background.
    notify
        Called with notices for the user.
    wake
        Called when `note` has changed, which a countdown does every second.
    cloud
        The user's name for the provider that takes nodes away.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        notify: Callable[[str], None],
        wake: Callable[[], None],
        cloud: str,
    ) -> None:
        self._cloud = cloud
        self._spawn = spawn
        self._notify = notify
        self._wake = wake
        self._leaving: dict[Connection, Leaving] = {}

    @property
    def note(self) -> str:
        """Describes which nodes will be taken away and when; empty if none."""
        there = (each for each in self._leaving.items() if not each[0].is_over and _holds(each[1]))
        return "; ".join(_described(*each, self._cloud) for each in there)

    def are_spent(self, connections: Iterable[Connection]) -> bool:
        """Return whether all nodes have said that they end because the money is spent."""
        said = [self._leaving.get(each) for each in connections]
        return all(each and each.kind == _SPENT and _holds(each) for each in said)

    def on_leaving(self, connection: Connection, event: Leaving) -> None:
        """Handle that a node will be taken away: tell the user, and count the seconds down."""
        is_new = self._leaving.get(connection) != event
        self._leaving[connection] = event
        if is_new:
            self._notify(self.note)
            if event.at is not None:
                self._spawn(self._count_down(connection, event.at))

    async def _count_down(self, connection: Connection, until: float) -> None:
        while not connection.is_over and (left := until - time.time()) > 0:
            await asyncio.sleep(min(1.0, left))
            self._wake()
            # A notebook updates the line that it shows; a terminal cannot, and gets further lines.
            if round(left) % _REPEAT_EVERY == 0:
                self._notify(self.note)


def _holds(event: Leaving) -> bool:
    """Return whether a node may still leave so: one that is there long afterwards got more time."""
    return event.at is None or event.at > time.time() - _ENDS_WITHIN


def _described(connection: Connection, event: Leaving, cloud: str) -> str:
    if event.at is None:
        return f"{cloud} recommends leaving {connection.name}, which it may take back soon"
    left = max(0, round(event.at - time.time()))
    time_left = f"{left // 60}:{left % 60:02}"
    if event.kind == _SPENT:
        return f"{connection.name} will end in {time_left}, when --max-cost is spent"
    return (
        f"{connection.name} will be {_FATES.get(event.kind, event.kind)} by {cloud} in {time_left}"
    )
