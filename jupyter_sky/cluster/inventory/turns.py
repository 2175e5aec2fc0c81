"""Which process changes a cluster: one at a time adds or removes machines, one installs packages.

Its row says which. Two that added machines at once would each record some of which the other knows
nothing, and which go on costing money; of two that installed at once, nodes would keep what one of
them knows of.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Literal

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.tasks import blocking

Role = Literal["grower", "installer"]
"""What a process does to a cluster: it adds or removes machines, or installs packages."""

LOOK_EVERY = 1.0
"""Seconds between two looks at whether another process is done."""


@contextlib.asynccontextmanager
async def turn(identity: str, waits: bool = False) -> AsyncIterator[None]:
    """Keep other processes from adding or removing machines of a cluster meanwhile.

    Parameters
    ----------
    identity
        The cluster's id.
    waits
        Whether to wait for one that does so.

    Raises
    ------
    SkyError
        If one does so, and is not waited for.
    """
    try:
        while not await blocking(begin, identity):
            if not waits:
                raise SkyError("another notebook is adding or removing nodes: try again later.")
            await asyncio.sleep(LOOK_EVERY)
        yield
    finally:
        # Without this, `gc` would spare the leftovers of a killed kernel for longer.
        with contextlib.suppress(registry.RegistryError):
            await blocking(end, identity)


def begin(identity: str, role: Role = "grower") -> bool:
    """Record that this process is about to do something to a cluster, by default to its machines.

    Returns
    -------
    bool
        False if another process of this computer does that; then nothing is recorded.
    """
    row = registry.with_id(identity)
    if row is None:
        return True
    if row.is_installed_elsewhere if role == "installer" else row.is_changed_elsewhere:
        return False
    since = (row.spec.get(role) or {}).get("since", 0.0)
    process = json.dumps({**processes.describe(), "since": time.time()})
    with registry.opened() as database:
        # Only one of two that have read the row at the same time is the first.
        done = database.execute(
            f"UPDATE clusters SET spec = json_set(spec, '$.{role}', json(?)) "
            f"WHERE id = ? AND coalesce(json_extract(spec, '$.{role}.since'), 0.0) = ?",
            (process, identity, since),
        )
        return done.rowcount == 1


def end(identity: str, role: Role = "grower") -> None:
    """Record that this is over, unless another process does so."""
    here = processes.describe()
    known_by = "mark" if here["mark"] else "computer"  # whose name can change
    with registry.opened() as database:
        database.execute(
            f"UPDATE clusters SET spec = json_set(spec, '$.{role}', json('null')) WHERE id = ? "
            f"AND json_extract(spec, '$.{role}.{known_by}', '$.{role}.pid') = json_array(?, ?)",
            (identity, here[known_by], here["pid"]),
        )
