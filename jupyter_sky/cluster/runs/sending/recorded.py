"""What the registry keeps of a run, for a kernel that attaches after the end of this one."""

from __future__ import annotations

import asyncio
import contextlib

from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.inventory.owed_runs import OwedRun
from jupyter_sky.cluster.runs.run import Run


def record_waiting(cluster: str, run: Run, has_others: bool) -> asyncio.Task[None] | None:
    """Record that a run waits for its turn, for a kernel that attaches after the end of this one.

    Parameters
    ----------
    cluster
        The cluster's id.
    run
        The run; what has no title, as a command, is not recorded.
    has_others
        Whether it waits for others; in the background its cell is over before it is sent anyway.

    Returns
    -------
    asyncio.Task or None
        To be awaited before more is recorded of the run, which replaces this.
    """
    if run.task.title and (has_others or run.in_background):
        return asyncio.create_task(_record(cluster, run, waits=True))
    run.kept.set()
    return None


async def record_begun(cluster: str, run: Run) -> None:
    """Record the names that a run is asked for, and that it does not wait any more."""
    if run.task.values or run.task.then:
        await _record(cluster, run, waits=False)
    else:
        await settle(cluster, run)


async def settle(cluster: str, run: Run) -> None:
    """Record that a run owes its kernel nothing, if anything was recorded of it."""
    if run.is_recorded:
        await asyncio.to_thread(owed_runs.settle, cluster, run.id)


async def _record(cluster: str, run: Run, waits: bool) -> None:
    task = run.task
    owed = OwedRun(task.title or "a run", task.values, task.gathered, task.then, waits)
    run.is_recorded = True
    with contextlib.suppress(OSError):
        await asyncio.to_thread(owed_runs.record, cluster, run.id, owed)
    run.kept.set()
