"""Files into which a notebook on this machine writes blobs directly.

Most of the cost of a large blob is for fresh pages of shared memory, which the system has to clear.
So a used blob that no rank maps any more gives its pages to the next one of about its size. The
system knows whether it is mapped: it grants a write lease only for a file that nobody else has
open, and a mapping counts as open, even in processes that a rank has started.

If nothing has run for a while, such pages are returned to the system: a notebook that needs one of
these blobs again writes it once more, without using a link. Where the machine lacks memory, all
that nobody maps is returned at once, before a process is killed for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from jupyter_sky.node.blobs.partial_blob import new_part
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import FillRoomRequest, MakeRoomRequest

KEPT = 300.0
"""Seconds without a run after which pages that nobody uses go back to the system."""

_MAPPED_WITHIN = 60.0
"""Seconds in which ranks have mapped what a run that began needs."""

_SPARE = 0.15
"""Fraction of the machine's memory that should stay available."""


def memory_is_short() -> bool:
    """Return whether this machine is about to lack memory."""
    memory = psutil.virtual_memory()
    return bool(memory.available < _SPARE * memory.total)


class BlobRooms:
    """The files into which notebooks on this machine write blobs.

    Parameters
    ----------
    store
        The blobs of the node.
    is_busy
        Returns whether any rank is busy, and so may be about to map a blob.
    on_forgotten
        Called with the blobs that are gone because their pages were reused or returned.
    is_short
        Returns whether the machine is about to lack memory.
    """

    def __init__(
        self,
        store: BlobStore,
        is_busy: Callable[[], bool],
        on_forgotten: Callable[[list[str]], None],
        is_short: Callable[[], bool] = memory_is_short,
    ) -> None:
        self._store = store
        self._is_short = is_short
        self._is_busy = is_busy
        self._on_forgotten = on_forgotten
        self._writers: dict[str, int] = {}
        self._filled: set[str] = set()  # blobs that came over a link should not have to come again

    def make(self, request: MakeRoomRequest) -> Message:
        """Make a file for a blob; answer with its name."""
        here = request["blob"] in self._store
        return {
            "here": here,
            "part": "" if here else self._make(request["size"], request["writer"]),
        }

    def _make(self, size: int, writer: int) -> str:
        self.drop_left()
        part = new_part(self._store.folder, writer)
        used = self._store.used(size, size + size // 4)
        gone = [] if self._is_busy() else self._take(used, part)
        self._on_forgotten(gone)
        if not gone:
            try:
                if not self._store.has_room_in_memory(size):
                    return ""
                os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except OSError:
                return ""
        self._writers[part.name] = writer
        return part.name

    def complete(self, request: FillRoomRequest) -> Message:
        """Turn a written file into a blob; answer whether that succeeded."""
        key, name, size = request["blob"], request["part"], request["size"]
        if self._writers.pop(name, None) is None:
            return {"filled": False}
        part = self._store.folder / name
        try:
            if part.stat().st_size == size:
                self._store.take_over(key, part, size)
                self._filled.add(key)
                return {"filled": True}
        except OSError:
            pass
        part.unlink(missing_ok=True)
        return {"filled": False}

    def drop_left(self) -> None:
        """Remove the files whose writer has ended."""
        for name, writer in list(self._writers.items()):
            try:
                os.kill(writer, 0)
            except ProcessLookupError:
                del self._writers[name]
                (self._store.folder / name).unlink(missing_ok=True)
            except PermissionError:
                continue

    async def give_back(self, idle: float) -> None:
        """Return the pages of used blobs that nobody maps to the system.

        Parameters
        ----------
        idle
            Seconds for which nothing has run; before `KEPT`, all pages stay, unless memory is
            short.
        """
        self._filled = {key for key in self._filled if key in self._store}
        is_short = bool(self._store.used()) and self._is_short()
        if idle < KEPT and not is_short:
            return
        parts, gone = [], []
        for key in self._store.used(since=_MAPPED_WITHIN if idle < KEPT else 0.0):
            part = new_part(self._store.folder)
            if (is_short or key in self._filled) and self._take([key], part):
                parts.append(part)
                gone.append(key)
        self._on_forgotten(gone)
        if parts:
            # Freeing many pages takes a while, and the agent has to answer its links.
            await asyncio.to_thread(_remove, parts)

    def _take(self, keys: Iterable[str], part: Path) -> list[str]:
        """Move the first of some blobs that nobody maps to ``part``; return its digest."""
        for key in keys:
            path = self._store.folder / key
            with contextlib.suppress(OSError):
                if not path.is_symlink() and _is_unmapped(path):
                    self._store.forget(key)
                    path.rename(part)
                    return [key]
        return []


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_unmapped(path: Path) -> bool:
    """Return whether no process has a file open or mapped."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
