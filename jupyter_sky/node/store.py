"""The blobs that a node holds: files in shared memory, within a limit."""

from __future__ import annotations

import asyncio
import collections
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

import blake3

from jupyter_sky.transport.blobs import file_name


class Store:
    """Blobs by digest, least recently used first out.

    A blob that is dropped stays mapped in the ranks that use it; only later runs need it again.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self._limit = limit
        self._sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._arriving: dict[str, _Arriving] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def add(self, key: str, offset: int, piece: memoryview, size: int) -> None:
        """Take a piece of an arriving blob; the last one completes it if its digest is right.

        Several may send the same blob at once, each in order: what one of them has sent is not
        needed from the others. A blob that is damaged, or that there is no room for, is not there
        in the end, and the run that needs it is told so.
        """
        if key in self._sizes:
            return
        arriving = self._arriving.get(key)
        if arriving is None:
            if offset:
                return
            arriving = self._arriving[key] = _Arriving(self.folder / file_name(key))
        fresh = piece[arriving.size - offset :] if offset <= arriving.size else piece[:0]
        try:
            arriving.write(fresh)
        except OSError:
            arriving.discard()
            del self._arriving[key]
            return
        if arriving.size >= size:
            del self._arriving[key]
            if arriving.keep(key):
                self._sizes[key] = size
        self._tell_of_growth(key)

    def arrived(self, key: str) -> int:
        """Return how many bytes of a blob are here, so that who sends it can go on there."""
        arriving = self._arriving.get(key)
        return self._sizes.get(key, arriving.size if arriving else 0)

    def read(self, key: str, offset: int, limit: int) -> bytes:
        """Return some of a blob from an offset on, also of one that is still arriving."""
        arriving = self._arriving.get(key)
        here = self.arrived(key)
        if offset >= here:
            return b""
        path = arriving.path if arriving else self.folder / file_name(key)
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(min(limit, here - offset)) or b""

    def growth(self, key: str) -> asyncio.Future[None]:
        """Return what is done when more of a blob has arrived, from this moment on."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(waiter)
        return waiter

    def _tell_of_growth(self, key: str) -> None:
        for waiter in self._waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result(None)

    def adopt(self, key: str, size: int) -> None:
        """Take over a blob that a rank of this node has written."""
        self._sizes[key] = size
        self._sizes.move_to_end(key)
        self._tell_of_growth(key)

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
    """A blob on its way into its file.

    Pieces are written rather than received into mapped memory: the system fills a new page of
    shared memory much faster in a write than in the page fault that a mapping would take.
    """

    def __init__(self, path: Path) -> None:
        self._place = path
        self.path = path.with_name(f"{uuid.uuid4().hex}.part")
        self._file = self.path.open("wb", buffering=0)
        self._hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        self.size = 0

    def write(self, piece: memoryview) -> None:
        """Append a piece; ``OSError`` when there is no room."""
        self.size += piece.nbytes
        # Hashed while it is in the processor's cache.
        self._hasher.update(piece)
        while piece.nbytes:
            piece = piece[self._file.write(piece) :]

    def keep(self, key: str) -> bool:
        """Make it a blob if it is what it should be, and say whether it is."""
        self._file.close()
        if self._hasher.hexdigest() != key:
            self.discard()
            return False
        self.path.rename(self._place)
        return True

    def discard(self) -> None:
        """Remove what came of it."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def default_limit(folder: Path) -> int:
    """Return how many bytes of blobs a node keeps: half of what is free where they lie."""
    return shutil.disk_usage(folder).free // 2
