"""Notices that the agent's machine will be taken away, from the source that its provider names."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.node.agent import spot_notices
from jupyter_sky.node.clock import steady_time, time_since_boot
from jupyter_sky.transport.protocol.agent_spec import LIMIT_FILE, NOTICE_FILE

_READ_EVERY = 1.0  # seconds
_SPENT_WITHIN = 120.0  # seconds before its money is spent in which a machine says so, as spot does
_GONE_WITHIN = 300.0  # seconds after its time within which a machine is taken away


@dataclass(frozen=True)
class Notice:
    """What will happen to the machine.

    Attributes
    ----------
    kind
        ``"terminate"``, ``"stop"`` or ``"hibernate"``; ``"spent"`` if it ends because it has cost
        what it may; ``"rebalance"`` if it is only likely.
    at
        When, as ``time.time`` counts; ``None`` if that is not known.
    """

    kind: str
    at: float | None

    @property
    def until(self) -> float:
        """Until when ranks may write, which prepare for the end; 0 if it is only likely."""
        return 0.0 if self.kind == "rebalance" else (self.at or time.time()) + _GONE_WITHIN


async def watch(source: str, folder: Path, on_notice: Callable[[Notice], None]) -> None:
    """Call ``on_notice`` once for each notice, until cancelled.

    Parameters
    ----------
    source
        A source of notices, as in `AgentSpec.notices`.
    folder
        The folder of the agent.
    """
    metadata = spot_notices.Metadata()
    reported: set[Notice] = set()
    while True:
        if source == "metadata":
            said = await asyncio.to_thread(spot_notices.current, metadata)
            every = spot_notices.ASK_EVERY
        elif source == "limit":
            said, every = _limit(Path(LIMIT_FILE)), _READ_EVERY
        else:
            said, every = _written(folder / NOTICE_FILE), _READ_EVERY
        notice = Notice(*said) if said else None
        if notice and notice not in reported:
            reported.add(notice)
            on_notice(notice)
        await asyncio.sleep(every)


def _limit(path: Path) -> tuple[str, float] | None:
    """Return that a machine ends soon because its money is spent; ``None`` if it does not."""
    try:
        at = time_since_boot(float(path.read_text()))
    except (OSError, ValueError):  # as in most machines, or while it is written
        return None
    return ("spent", at) if at - steady_time() < _SPENT_WITHIN else None


def _written(path: Path) -> tuple[str, float | None] | None:
    try:
        said = json.loads(path.read_text())
    except OSError:  # nothing is written yet, or it cannot be read for a moment, as over NFS
        return None
    return said["kind"], said["at"]
