"""Looking at clusters that no notebook is connected to: their agents know how they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.inventory import probe
from jupyter_sky.cluster.inventory.registry import Row
from jupyter_sky.errors import SkyError
from jupyter_sky.server import cli_process

_PATIENCE = 0.5
"""Seconds for which a page waits for a look; what takes longer is in the next answer."""

_STATES = {"idle": "ready", "busy": "running", "starting": "starting", "gone": "lost"}


@dataclass
class _Look:
    """One way of looking, and what it showed last.

    Attributes
    ----------
    look
        Returns the phases of clusters, by their ids.
    every
        Seconds between two looks.
    """

    look: Callable[[Sequence[Row]], Awaitable[dict[str, str]]]
    every: float
    known: dict[str, str] = field(default_factory=dict)
    _asked: frozenset[str] = frozenset()
    _at: float = 0.0
    _task: asyncio.Task[None] | None = None

    def again(self, rows: Sequence[Row]) -> asyncio.Task[None] | None:
        """Look again if it is time, and return what is under way."""
        asked = frozenset(row.id for row in rows)
        due = asked - self._asked or time.monotonic() > self._at + self.every
        if asked and due and (self._task is None or self._task.done()):
            self._asked, self._at = asked, time.monotonic()
            self._task = asyncio.create_task(self._look(rows))
        return self._task

    async def _look(self, rows: Sequence[Row]) -> None:
        with contextlib.suppress(SkyError, OSError, ValueError):
            self.known = await self.look(rows)


class StatusPoller:
    """Looks at clusters, and not too often."""

    def __init__(self) -> None:
        self._here = _Look(lambda rows: asyncio.to_thread(probe.probe_local, rows), every=2.0)
        self._away = _Look(_look_away, every=30.0)

    async def states(self, rows: Sequence[Row]) -> dict[str, str]:
        """Return the states of clusters by their ids, as far as they are known by now."""
        tasks = [
            self._here.again([row for row in rows if row.provider == "local"]),
            self._away.again([row for row in rows if row.provider != "local"]),
        ]
        if waiting := [task for task in tasks if task and not task.done()]:
            await asyncio.wait(waiting, timeout=_PATIENCE)
        phases = self._here.known | self._away.known
        return {identity: _STATES.get(phase, "unknown") for identity, phase in phases.items()}


async def _look_away(rows: Sequence[Row]) -> dict[str, str]:
    """Ask the nodes elsewhere; what reaches them does not belong into the server."""
    found = json.loads(await cli_process.run("status", "--json"))
    return {each["id"]: each["state"] for each in found}
