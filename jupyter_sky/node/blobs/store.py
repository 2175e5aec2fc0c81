"""The blobs that a node holds: files in shared memory, and on its disk what has no room there."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import shutil
import threading
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blake3

from jupyter_sky.serialization.blobs import file_name


class Store:
    """Blobs by digest, least recently used first out: of memory to the disk, of the disk for good.

    Whoever maps a blob finds it in one folder, where one on the disk has a link. A blob that leaves
    stays mapped in the ranks that use it; only later runs need it again.

    Parameters
    ----------
    folder
        Where blobs are found; in shared memory, where there is enough.
    limit
        Bytes that lie there.
    disk
        A folder on the disk for what is more; ``None`` where ``folder`` is on the disk itself.
    disk_limit
        Bytes that lie in that.
    """

    def __init__(
        self, folder: Path, limit: int, disk: Path | None = None, disk_limit: int = 0
    ) -> None:
        self.folder = folder
        self._limit = limit
        self._sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._spill = _Spill(folder, disk, disk_limit)
        self._arriving: dict[str, _Arriving] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._sizes or key in self._spill.sizes

    def add(self, key: str, offset: int, piece: memoryview, size: int) -> None:
        """Take a piece of an arriving blob; the last one completes it if its digest is right.

        Several may send the same blob at once, each in order: what one of them has sent is not
        needed from the others. A blob that is damaged, or that there is no room for, is not there
        in the end, and the run that needs it is told so.
        """
        if key in self:
            return
        arriving = self._arriving.get(key)
        if arriving is None:
            if offset:
                return
            arriving = self._arriving[key] = self._begin(self.folder / file_name(key), size)
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
                (self._spill.sizes if arriving.is_elsewhere else self._sizes)[key] = size
        self._tell_of_growth(key)

    def _begin(self, place: Path, size: int) -> _Arriving:
        used = sum(self._sizes.values())
        used += sum(each.whole for each in self._arriving.values() if not each.is_elsewhere)
        is_full = used + size > self._limit and self._spill.has_room(size)
        return _Arriving(place, size, self._spill.folder if is_full else None)

    def arrived(self, key: str) -> int:
        """Return how many bytes of a blob are here, so that who sends it can go on there."""
        arriving = self._arriving.get(key)
        if arriving is None:
            return self._sizes.get(key) or self._spill.sizes.get(key, 0)
        return arriving.size

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
        if key not in self._spill.sizes:
            self._sizes[key] = size
        self.use([key])
        self._tell_of_growth(key)

    def use(self, keys: Iterable[str]) -> None:
        """Note that these blobs are wanted now."""
        for key in keys:
            for sizes in (self._sizes, self._spill.sizes):
                if key in sizes:
                    sizes.move_to_end(key)

    def trim(self, wanted: frozenset[str] = frozenset()) -> list[str]:
        """Move or drop blobs that are not ``wanted`` until limits are kept; return what is gone."""
        dropped = []
        total = sum(self._sizes.values())
        for key in [key for key in self._sizes if key not in wanted]:
            if total <= self._limit:
                break
            size = self._sizes.pop(key)
            total -= size
            if self._spill.has_room(size):
                self._spill.take(key, size)
            else:
                (self.folder / key).unlink(missing_ok=True)
                dropped.append(key)
        return dropped + self._spill.trim(wanted)

    def remove(self) -> None:
        """Remove all blobs."""
        self._spill.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Spill:
    """The blobs that lie on the disk; where others are, each has a link."""

    def __init__(self, links: Path, folder: Path | None, limit: int) -> None:
        self.folder = folder
        self.sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._links = links
        self._limit = limit if folder else 0
        self._lock = threading.Lock()
        # Disks are slow: nobody waits for one, least of all who listens for signs of life.
        self._mover = ThreadPoolExecutor(1, "sky-spill")
        if folder:
            folder.mkdir(mode=0o700, exist_ok=True)

    def has_room(self, size: int) -> bool:
        """Whether a blob can be here at all; others make room for it."""
        return size <= self._limit

    def take(self, key: str, size: int) -> None:
        """Move a blob here, soon; it can be mapped all the while."""
        self.sizes[key] = size
        self._mover.submit(self._move, key)

    def _move(self, key: str) -> None:
        assert self.folder is not None
        place, part = self.folder / key, self.folder / f"{uuid.uuid4().hex}.part"
        # What cannot be moved stays where it is, and is counted here.
        with contextlib.suppress(OSError):
            shutil.copyfile(self._links / key, part)
            with self._lock:
                if key in self.sizes:
                    part.rename(place)
                    link(self._links / key, place)
        part.unlink(missing_ok=True)

    def trim(self, wanted: frozenset[str]) -> list[str]:
        """Drop blobs that are not ``wanted`` until the limit is kept; return their digests."""
        dropped = []
        total = sum(self.sizes.values())
        for key in [key for key in self.sizes if key not in wanted]:
            if total <= self._limit:
                break
            with self._lock:
                total -= self.sizes.pop(key)
                (self._links / key).unlink(missing_ok=True)
                if self.folder:
                    (self.folder / key).unlink(missing_ok=True)
            dropped.append(key)
        return dropped

    def remove(self) -> None:
        """Remove all that is here."""
        self._mover.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self.sizes.clear()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class _Arriving:
    """A blob on its way into its file.

    Pieces are written rather than received into mapped memory: the system fills a new page of
    shared memory much faster in a write than in the page fault that a mapping would take.

    Parameters
    ----------
    place
        Where it will be found.
    whole
        How many bytes it will have.
    elsewhere
        A folder where it lies then, with a link at its place.
    """

    def __init__(self, place: Path, whole: int, elsewhere: Path | None = None) -> None:
        self._place = place
        self._elsewhere = elsewhere
        self.whole = whole
        self.path = (elsewhere or place.parent) / f"{uuid.uuid4().hex}.part"
        self._file = self.path.open("wb", buffering=0)
        self._hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        self.size = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether it does not lie where it is found."""
        return self._elsewhere is not None

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
        if self._elsewhere:
            link(self._place, self.path.rename(self._elsewhere / key))
        else:
            self.path.rename(self._place)
        return True

    def discard(self) -> None:
        """Remove what came of it."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def link(place: Path, target: Path) -> None:
    """Have a link at a place, instead of what is there now, at once."""
    new = place.with_name(f"{uuid.uuid4().hex}.part")
    new.symlink_to(target)
    new.rename(place)


def default_limit(folder: Path) -> int:
    """Return how many bytes of blobs a node keeps: half of what is free where they lie."""
    return shutil.disk_usage(folder).free // 2


def default_disk(folder: Path, beside: Path) -> Path | None:
    """Return the folder ``beside`` if that is on another disk than ``folder``."""
    return beside if beside.parent.stat().st_dev != folder.stat().st_dev else None
