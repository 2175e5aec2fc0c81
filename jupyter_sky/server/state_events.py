"""Tells pages to ask for the clusters, as soon as one is in another state.

Pages ask every few seconds. What is wanted: a rank that fails, and a run that ends, are in the
sidebar as soon as in the strip. What does not work: asking more often, which costs as much while
nothing happens. The solution: this process looks at the stamps of a few files, and JupyterLab's
pages have a connection for events of the server already. An event has no content: whoever may see
the clusters asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

from jsonschema import ValidationError

from jupyter_sky.cluster.inventory import kernel_files, registry
from jupyter_sky.cluster.inventory.kernel_files import Unreadable
from jupyter_sky.errors import SkyError

EVENT = "urn:jupyter-sky:states"
"""The id of the event; ``labextension/src/lab/clusters.ts`` waits for it."""

_INTERVAL = 0.1  # seconds between two looks at the files
_WATCHED = 60.0  # seconds after a page has asked; most ask again before that

_REGISTRY = ""  # in place of a path

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
        self._folder = kernel_files.folder(runtime)
        self._logger = logger
        try:
            logger.register_event_schema({**_SCHEMA, "version": "1"})
        except ValidationError:  # before jupyter_events 0.11, a version is a number
            logger.register_event_schema({**_SCHEMA, "version": 1})
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._news: dict[str, object] = {}

    def keep_watching(self) -> None:
        """Watch the files for some time from now on, because a page has asked for the clusters."""
        self._until = time.monotonic() + _WATCHED
        if self._thread is None or not self._thread.is_alive():
            # The files may be on a slow network; and the server's end need not wait for it.
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._watch, args=(loop,), daemon=True)
            self._thread.start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._has_news()
        while time.monotonic() < self._until:
            time.sleep(_INTERVAL)
            if self._has_news():
                with contextlib.suppress(RuntimeError):  # the server ends
                    loop.call_soon_threadsafe(self._emit)

    def _emit(self) -> None:
        self._logger.emit(schema_id=EVENT, data={})

    def _has_news(self) -> bool:
        """Return whether something has changed since the last call that users want to see."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        news = {
            path: self._news[path] if self._stamps.get(path) == stamp else _read(path, stamp)
            for path, stamp in stamps.items()
        }
        changed = news != self._news
        self._stamps, self._news = stamps, news
        return changed

    def _look(self) -> dict[str, tuple[int, ...]]:
        """Return the stamp of each file."""
        stamps = {}
        # There is no cluster yet, or the list of clusters says what is wrong with the folder.
        with contextlib.suppress(OSError, SkyError):
            stamps[_REGISTRY] = kernel_files.stamp(registry.file().stat())
        with contextlib.suppress(OSError), os.scandir(self._folder) as files:
            for file in files:
                if file.name.endswith(".json"):
                    with contextlib.suppress(OSError):  # its kernel has just ended
                        stamps[file.path] = kernel_files.stamp(file.stat())
        return stamps


def _read(path: str, stamp: tuple[int, ...]) -> object:
    """Return what users want to know of a file at once: of the registry, that it has changed."""
    if path == _REGISTRY:
        return stamp
    try:
        return kernel_files.news(kernel_files.read(Path(path)))
    except (Unreadable, OSError):
        return None
