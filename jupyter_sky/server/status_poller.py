"""Asks the agents of clusters without a connected notebook for their states."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.inventory import probe
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.errors import SkyError
from jupyter_sky.server import cli_process
from jupyter_sky.server.schema import ClusterStatus

_PATIENCE = 0.5
"""Seconds for which a page waits for the agents; what takes longer is in the next answer."""

_TIMEOUT = 60.0
"""Seconds for ``jupyter sky status``, which answers within half of that unless something hangs."""

_STATES: dict[str, ClusterStatus] = {
    "idle": "ready",
    "running": "running",
    "starting": "starting",
    "gone": "lost",
    "stopped": "stopped",
}


class StatusPoller:
    """Asks for the states of clusters, more often for those on this computer."""

    def __init__(self) -> None:
        self._here = _Poll(lambda rows: asyncio.to_thread(probe.probe_local, rows), interval=2.0)
        self._elsewhere = _Poll(_ask_command_line, interval=30.0)

    async def states(self, rows: Sequence[RegistryRow]) -> dict[str, ClusterStatus]:
        """Return the states of clusters, by id, as far as they are known."""
        tasks = [
            self._here.start_if_due([row for row in rows if row.provider == "local"]),
            self._elsewhere.start_if_due([row for row in rows if row.provider != "local"]),
        ]
        if waiting := [task for task in tasks if task]:
            await asyncio.wait(waiting, timeout=_PATIENCE)
        phases = self._here.phases | self._elsewhere.phases
        return {identity: _STATES.get(phase, "unknown") for identity, phase in phases.items()}


@dataclass
class _Poll:
    """A method of asking, and its last answers.

    Attributes
    ----------
    ask
        Returns the phases of clusters by id; it may add others.
    interval
        Seconds between two calls, unless a cluster is new, or was stopped or started meanwhile.
    phases
        The last result, without clusters that are no longer asked for.
    """

    ask: Callable[[Sequence[RegistryRow]], Awaitable[dict[str, str]]]
    interval: float
    phases: dict[str, str] = field(default_factory=dict)
    _asked: frozenset[tuple[str, bool]] = frozenset()
    _last: float = 0.0
    _task: asyncio.Task[None] | None = None

    def start_if_due(self, rows: Sequence[RegistryRow]) -> asyncio.Task[None] | None:
        """Ask again if it is time, and return the new task."""
        asked = frozenset((row.id, row.is_stopped) for row in rows)
        # One that is asked for again later may have changed.
        self._asked &= asked
        self.phases = _only(rows, self.phases)
        due = asked - self._asked or time.monotonic() > self._last + self.interval
        if asked and due and (self._task is None or self._task.done()):
            self._asked, self._last = asked, time.monotonic()
            self._task = asyncio.create_task(self._run(rows))
            return self._task
        return None

    async def _run(self, rows: Sequence[RegistryRow]) -> None:
        try:
            self.phases = _only(rows, await self.ask(rows))
        except (SkyError, OSError, ValueError):
            self.phases = {}  # what was known may be hours old


def _only(rows: Sequence[RegistryRow], phases: Mapping[str, str]) -> dict[str, str]:
    """Return the phases of these clusters."""
    return {row.id: phases[row.id] for row in rows if row.id in phases}


async def _ask_command_line(rows: Sequence[RegistryRow]) -> dict[str, str]:
    """Ask remote nodes in a separate process: the server never imports SSH and AWS libraries."""
    found = json.loads(await cli_process.run("status", "--json", timeout=_TIMEOUT))
    return {each["id"]: each["state"] for each in found}
