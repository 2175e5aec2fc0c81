"""What the sidebar does with a cluster: the kernel does it, or else the command line.

A kernel that is connected to the cluster comes first, as its person sees there what happens. Where
there is none any more, or it hangs, the cluster's agents are told by ``jupyter sky``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from jupyter_sky.cluster.registry import Row
from jupyter_sky.errors import SkyError
from jupyter_sky.server import kernels, terminal
from jupyter_sky.server.clusters import Found
from jupyter_sky.server.hearing import Hearing
from jupyter_sky.server.kernels import NoAnswer

_TELL_AFTER = 30.0
"""Seconds after which the page is told that it goes on; ways to a hub do not stay open for ever."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""What a cluster can be called."""

_tasks: set[asyncio.Task[str]] = set()


async def act(
    hearing: Hearing, found: Found, identity: str, action: str, options: Mapping[str, Any]
) -> str:
    """Do something with a cluster, and return a sentence about it.

    Raises
    ------
    SkyError
        When it cannot be done.
    """
    row = found.row(identity)
    name = row.name if row else identity
    task = asyncio.create_task(_act(hearing, found, identity, action, options))
    # It goes on when the page that asked is gone.
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    done, _ = await asyncio.wait({task}, timeout=_TELL_AFTER)
    return task.result() if done else f"{name}: {action} takes its time, and goes on"


async def _act(
    hearing: Hearing, found: Found, identity: str, action: str, options: Mapping[str, Any]
) -> str:
    live = found.live(identity)
    if live:
        file = hearing.connection_file(live[0].kernel.kernel)
        try:
            return await kernels.ask(file, {"action": action, "cluster": identity, **options})
        except NoAnswer:
            if action not in ("interrupt", "down"):
                raise
    row = found.row(identity)
    if row is None:
        raise SkyError("that cluster is not there any more.")
    if not isinstance(row, Row) and action != "down":
        raise SkyError(f"what the registry says of {row.name} cannot be made out: shut it down.")
    return _last_line(await terminal.run(*words(action, row.name, options)))


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
