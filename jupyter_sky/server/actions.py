"""What the sidebar does with a cluster: the kernel does it, or else the command line.

A kernel that is connected to the cluster comes first, as its person sees there what happens. Where
there is none any more, or it hangs, the cluster's agents are told by ``jupyter sky``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from jupyter_sky.cluster.inventory.registry import Row
from jupyter_sky.errors import SkyError
from jupyter_sky.server import cli_process, kernel_client
from jupyter_sky.server.cluster_list import Found
from jupyter_sky.server.kernel_client import NoAnswer
from jupyter_sky.server.kernel_reports import KernelReports

_TELL_AFTER = 30.0
"""Seconds after which the page is told that it goes on; ways to a hub do not stay open for ever."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""What a cluster can be called."""


class Actions:
    """Does things with clusters, and remembers what did not work.

    Parameters
    ----------
    hearing
        By which kernels are found.
    """

    def __init__(self, hearing: KernelReports) -> None:
        self._hearing = hearing
        self._tasks: set[asyncio.Task[str]] = set()
        self._failures: dict[str, str] = {}

    async def act(
        self, found: Found, identity: str, action: str, options: Mapping[str, Any]
    ) -> str:
        """Do something with a cluster, and return a sentence about it.

        Raises
        ------
        SkyError
            When it cannot be done.
        """
        row = found.row(identity)
        name = row.name if row else identity
        task = asyncio.create_task(_act(self._hearing, found, identity, action, options))
        # It goes on when the page that asked is gone.
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, identity, action))
        done, _ = await asyncio.wait({task}, timeout=_TELL_AFTER)
        return task.result() if done else f"{name}: {action} takes its time, and goes on"

    def failures(self, found: Found) -> Mapping[str, str]:
        """Return why the last action did not work, by the ids of clusters that are still there."""
        if found.home is not None:
            there = {row.id for row in found.rows} | set(found.accounts)
            for identity in self._failures.keys() - there:
                del self._failures[identity]
        return self._failures

    def _ended(self, identity: str, action: str, task: asyncio.Task[str]) -> None:
        # Maybe nobody waits for it any more, who could be told.
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failures.pop(identity, None)
        elif isinstance(error, SkyError):
            self._failures[identity] = str(error)
        else:
            self._failures[identity] = f"{action} did not work; the server's log says why."
            logging.getLogger(__name__).error("%s did not work", action, exc_info=error)


async def _act(
    hearing: KernelReports, found: Found, identity: str, action: str, options: Mapping[str, Any]
) -> str:
    live = found.live(identity)
    if live:
        file = hearing.connection_file(live[0].kernel.kernel)
        try:
            return await kernel_client.ask(file, {"action": action, "cluster": identity, **options})
        except NoAnswer:
            if action not in ("interrupt", "down"):
                raise
    row = found.row(identity)
    if row is None:
        raise SkyError("that cluster is not there any more.")
    if not isinstance(row, Row) and action != "down":
        raise SkyError(f"what the registry says of {row.name} cannot be made out: shut it down.")
    return _last_line(await cli_process.run(*words(action, row.name, options)))


def words(action: str, name: str, options: Mapping[str, Any]) -> list[str]:
    """Return what ``jupyter sky`` is told to do something with a cluster.

    Raises
    ------
    SkyError
        When it cannot be said; what stands in the registry could be anything.
    """
    if not NAME.fullmatch(name):
        raise SkyError(f"no cluster can have the name {name[:60]!r}: the registry is damaged.")
    match action, options:
        case "down", _:
            return ["down", name]
        case "restart", {"ranks": [*ranks]}:
            return ["restart", ",".join(map(str, ranks)), "--cluster", name]
        case "scale", {"nodes": nodes}:
            return ["scale", str(nodes), "--cluster", name]
    return [action, "--cluster", name]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["done"])[-1]
