"""Which process adds or removes machines of a cluster: one at a time, as its row says.

Two that did so at once would each record machines of which the other knows nothing: they would go
on costing money.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.tasks import blocking

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


def begin(identity: str) -> bool:
    """Record that this process is about to add or remove machines of a cluster.

    Returns
    -------
    bool
        False if another process of this computer does that; then nothing is recorded.
    """
    row = registry.with_id(identity)
    if row is None:
        return True
    if row.is_changed_elsewhere:
        return False
    since = (row.spec.get("grower") or {}).get("since", 0.0)
    grower = json.dumps({**processes.describe(), "since": time.time()})
    with registry.opened() as database:
        # Only one of two that have read the row at the same time is the first.
        done = database.execute(
            "UPDATE clusters SET spec = json_set(spec, '$.grower', json(?)) "
            "WHERE id = ? AND coalesce(json_extract(spec, '$.grower.since'), 0.0) = ?",
            (grower, identity, since),
        )
        return done.rowcount == 1


def end(identity: str) -> None:
    """Record that this is over, unless another process does so."""
    here = processes.describe()
    known_by = "mark" if here["mark"] else "computer"  # whose name can change
    with registry.opened() as database:
        database.execute(
            "UPDATE clusters SET spec = json_set(spec, '$.grower', json('null')) WHERE id = ? "
            f"AND json_extract(spec, '$.grower.{known_by}', '$.grower.pid') = json_array(?, ?)",
            (identity, here[known_by], here["pid"]),
        )
