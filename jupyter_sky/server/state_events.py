"""Tells pages to ask for the clusters, as soon as one is in another state.

Pages ask every few seconds. What is wanted: a rank that fails, and a run that ends, are in the
sidebar as soon as in the strip. What does not work: asking more often, which costs as much while
nothing happens. The solution: this process looks at the times of a few files, and JupyterLab's
pages have a connection for events of the server already. An event has no content: whoever may see
the clusters asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from jsonschema import ValidationError

from jupyter_sky.cluster.inventory import kernel_files, registry
from jupyter_sky.cluster.inventory.kernel_files import Unreadable

EVENT = "urn:jupyter-sky:states"
"""The id of the event; ``labextension/src/lab/clusters.ts`` waits for it."""

_INTERVAL = 0.1  # seconds between two looks at the files
_WATCHED = 60.0  # seconds after a page has asked; most ask again before that

_SCHEMA = {
    "$id": EVENT,
    "title": "States of clusters",
    "description": "A cluster of jupyter_sky, its run or one of its ranks is in another state.",
    "type": "object",
    "properties": {},
}


class StateEvents:
    """Emits an event of Jupyter's when a state changes, while there are pages.

    Parameters
    ----------
    runtime
        Jupyter's runtime directory, where kernels write what they know of their clusters.
    logger
        The server's `jupyter_events.EventLogger`.
    """

    def __init__(self, runtime: Path, logger: Any) -> None:
        self._runtime = runtime
        self._logger = logger
        try:
            logger.register_event_schema({**_SCHEMA, "version": "1"})
        except ValidationError:  # before jupyter_events 0.11, a version is a number
            logger.register_event_schema({**_SCHEMA, "version": 1})
        self._until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stamps: dict[Path, int] = {}
        self._news: dict[Path, object] = {}

    def keep_watching(self) -> None:
        """Watch the files for some time from now on, because a page has asked for the clusters."""
        self._until = time.monotonic() + _WATCHED
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await asyncio.to_thread(self._has_news)
        while time.monotonic() < self._until:
            await asyncio.sleep(_INTERVAL)
            if await asyncio.to_thread(self._has_news):
                self._logger.emit(schema_id=EVENT, data={})

    def _has_news(self) -> bool:
        """Return whether something has changed since the last call that users want to see."""
        paths = [registry.file(), *kernel_files.paths(self._runtime)]
        stamps = {path: stamp for path in paths if (stamp := _stamp(path))}
        news = {
            path: self._news[path] if self._stamps.get(path) == stamp else _read(path, stamp)
            for path, stamp in stamps.items()
        }
        changed = news != self._news
        self._stamps, self._news = stamps, news
        return changed


def _stamp(path: Path) -> int | None:
    with contextlib.suppress(OSError):  # a kernel has just ended
        return path.stat().st_mtime_ns
    return None


def _read(path: Path, stamp: int) -> object:
    """Return what users want to know of a file at once: of the registry, that it has changed."""
    if path == registry.file():
        return stamp
    try:
        return kernel_files.news(kernel_files.read(path))
    except (Unreadable, OSError):
        return None
