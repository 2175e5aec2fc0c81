"""The blobs that a node holds: files in shared memory, within a limit."""

from __future__ import annotations

import collections
import mmap
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from jupyter_sky.transport.blobs import digest, file_name
from jupyter_sky.transport.frames import ProtocolError


class Store:
    """Blobs by digest, least recently used first out.

    A blob that is dropped stays mapped in the ranks that use it; only later runs need it again.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit
        self._sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._arriving: dict[str, _Arriving] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def place(self, key: str, offset: int, count: int, size: int) -> memoryview:
        """Return the memory into which a piece of an arriving blob is received."""
        arriving = self._arriving.get(key)
        if arriving is None:
            path = self.folder / file_name(key)
            try:
                arriving = self._arriving[key] = _Arriving(path, size)
            except OSError:
                # No room. The run that needs the blob is told that it is missing.
                return memoryview(bytearray(count))
        if size != arriving.size or offset + count > size:
            raise ProtocolError(f"a piece of blob {key} lies outside of it")
        return memoryview(arriving.memory)[offset : offset + count]

    def received(self, key: str, offset: int, count: int) -> None:
        """Take note of a piece; the blob is there when it is complete and has its digest."""
        arriving = self._arriving.get(key)
        if arriving is None:
            return
        arriving.missing -= count
        if arriving.missing:
            return
        del self._arriving[key]
        # Hashing now, while the pieces are still warm, costs a tenth of receiving them.
        if digest(arriving.memory) != key:
            arriving.discard()
            return
        arriving.keep()
        self._sizes[key] = arriving.size

    def adopt(self, key: str, size: int) -> None:
        """Take over a blob that a rank of this node has written."""
        self._sizes[key] = size
        self._sizes.move_to_end(key)

    def use(self, keys: Iterable[str]) -> None:
        """Note that these blobs are wanted now."""
        for key in keys:
            if key in self._sizes:
                self._sizes.move_to_end(key)

    def trim(self, wanted: frozenset[str] = frozenset()) -> list[str]:
        """Drop blobs that are not ``wanted`` until the limit is kept; return their digests."""
        dropped = []
        total = sum(self._sizes.values())
        for key in [key for key in self._sizes if key not in wanted]:
            if total <= self._limit:
                break
            total -= self._sizes.pop(key)
            (self.folder / key).unlink(missing_ok=True)
            dropped.append(key)
        return dropped

    def remove(self) -> None:
        """Remove all blobs."""
        shutil.rmtree(self.folder, ignore_errors=True)


class _Arriving:
    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._part = path.with_suffix(".part")
        self.size = self.missing = size
        with self._part.open("w+b") as file:
            try:
                # Memory that is not there must be an error here, not a SIGBUS later.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                self.discard()
                raise
            self.memory = mmap.mmap(file.fileno(), size)

    def keep(self) -> None:
        self._part.rename(self._path)

    def discard(self) -> None:
        self._part.unlink(missing_ok=True)


def default_limit(folder: Path) -> int:
    """Return how many bytes of blobs a node keeps: half of what is free where they lie."""
    return shutil.disk_usage(folder).free // 2
