"""The blobs of a node: files in shared memory or, if there is no room, on its disk."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from jupyter_sky.node.blobs.partial_blob import SPILLED, PartialBlob, new_part, replace_by_link
from jupyter_sky.serialization.blobs import file_name

_IN_MEMORY = ("tmpfs", "ramfs")

STALLED = 300.0
"""Seconds without a new byte after which a blob is taken never to arrive."""


class BlobStore:
    """Blobs by digest, with one limit in memory and one on disk.

    The least recently used blobs are moved from memory to disk, and dropped from disk. Ranks find
    all blobs in one folder, which has a link for each that is on disk. A dropped blob stays mapped
    in the ranks that use it; only later runs need it again.

    Parameters
    ----------
    folder
        Where ranks find blobs; in shared memory, if that is large enough.
    limit
        Most bytes to keep there.
    disk
        A folder on disk for blobs beyond that; ``None`` if ``folder`` is itself on disk.
    disk_limit
        Most bytes to keep in that.
    """

    def __init__(
        self, folder: Path, limit: int, disk: Path | None = None, disk_limit: int = 0
    ) -> None:
        self.folder = folder
        self._limit = limit
        self._sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._total = 0  # their sum, kept since there can be many
        self._spill = _Spill(folder, disk, disk_limit)
        self._partial: dict[str, PartialBlob] = {}
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}
        self._used: dict[str, float] = {}  # by when a run began to use them, at last
        self._refused: set[str] = set()  # until they come again

    def __contains__(self, key: str) -> bool:
        return key in self._sizes or key in self._spill.sizes

    def add(self, key: str, offset: int, piece: memoryview, size: int) -> None:
        """Add a piece of a blob; the last one completes the blob if its digest is right.

        Several senders may send the same blob at once, each in order: a piece is needed from only
        one of them. A blob that was damaged on its way, or for which there is no room, does not get
        into the store; the run that needs it is told so.

        Parameters
        ----------
        key
            Its digest.
        offset
            Where the piece belongs.
        piece
            The bytes.
        size
            Size of the whole blob.
        """
        if key in self:
            return
        partial = self._partial.get(key)
        if partial is None and offset:
            return
        try:
            if partial is None:
                partial = self._partial[key] = self._new_blob(self.folder / file_name(key), size)
                self._refused.discard(key)
            fresh = piece[partial.size - offset :] if offset <= partial.size else piece[:0]
            partial.write(fresh)
            if partial.size >= size:
                self._complete(key, partial)
        except OSError:
            self._give_up(key)
            return
        self._wake_readers(key)

    def _complete(self, key: str, partial: PartialBlob) -> None:
        if not partial.complete(key):
            self._refused.add(key)
        elif partial.is_spilled:
            self._spill.sizes[key] = partial.full_size
        else:
            self._count(key, partial.full_size)
        del self._partial[key]

    def drop_stalled(self, seconds: float = STALLED) -> None:
        """Drop blobs whose arrival has stalled for that long; their senders start over."""
        before = time.monotonic() - seconds
        for key in [key for key, partial in self._partial.items() if partial.changed <= before]:
            self._give_up(key)

    def _give_up(self, key: str) -> None:
        if partial := self._partial.pop(key, None):
            partial.discard()
        self._refused.add(key)
        self._wake_readers(key)

    def _new_blob(self, path: Path, size: int) -> PartialBlob:
        if self.is_taken:
            raise PermissionError("the folder is another user's")
        is_full = not self.has_room_in_memory(size) and self._spill.has_room(size)
        return PartialBlob(path, size, self._spill.folder if is_full else None)

    def has_room_in_memory(self, size: int) -> bool:
        """Return whether that many more bytes are within the limit, and others have left room."""
        arriving = [each for each in self._partial.values() if not each.is_spilled]
        needed = size + sum(each.full_size for each in arriving)
        free = shutil.disk_usage(self.folder).free + sum(each.size for each in arriving)
        return self._total + needed <= self._limit and needed <= free

    def _count(self, key: str, size: int) -> None:
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _uncount(self, key: str) -> int:
        size = self._sizes.pop(key, 0)
        self._total -= size
        return size

    def arrived(self, key: str) -> int:
        """Return how many bytes of a blob are here, so that its sender can continue there."""
        partial = self._partial.get(key)
        if partial is None:
            return self._sizes.get(key) or self._spill.sizes.get(key, 0)
        return partial.size

    def read(self, key: str, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes of a blob at an offset, even while it is arriving."""
        partial = self._partial.get(key)
        here = self.arrived(key)
        if offset >= here:
            return b""
        path = partial.path if partial else self.folder / file_name(key)
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(min(limit, here - offset)) or b""

    def growth(self, key: str) -> asyncio.Future[bool]:
        """Return a future that is done once more of a blob arrives from now on.

        Its result is ``False`` if no more does: there is no room, or the blob was damaged.
        """
        waiter = asyncio.get_running_loop().create_future()
        if key in self._refused:
            waiter.set_result(False)
        else:
            self._waiting.setdefault(key, []).append(waiter)
        return waiter

    def _wake_readers(self, key: str) -> None:
        for waiter in self._waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result(key not in self._refused)

    def adopt(self, key: str, size: int) -> None:
        """Take charge of a blob that a rank of this node has written into the folder.

        Raises
        ------
        ProtocolError
            When the key would name a file elsewhere.
        """
        path = self.folder / file_name(key)
        if path.is_symlink():  # there was no room in memory
            self._uncount(key)
            self._spill.sizes[key] = size
        elif key not in self._spill.sizes:
            self._count(key, size)
        self._used.pop(key, None)
        self._refused.discard(key)
        self.touch([key])
        self._wake_readers(key)

    def take_over(self, key: str, part: Path, size: int) -> None:
        """Take charge of a blob that was written into a file of the folder.

        Raises
        ------
        ProtocolError
            When the key would name a file elsewhere.
        """
        if key in self:
            part.unlink()
            return
        part.rename(self.folder / file_name(key))
        if partial := self._partial.pop(key, None):  # left by a broken link
            partial.discard()
        self.adopt(key, size)

    def note_used(self, keys: Iterable[str]) -> None:
        """Remember that a run uses these blobs: once no rank maps one any more, it is unused."""
        self._used.update(dict.fromkeys(keys, time.monotonic()))

    def used(self, least: int = 0, most: float = math.inf, since: float = 0.0) -> list[str]:
        """Return used blobs in memory, the least recently used first.

        Parameters
        ----------
        least, most
            Their sizes.
        since
            Seconds for which no run must have begun to use them.
        """
        self._used = {key: began for key, began in self._used.items() if key in self._sizes}
        before = time.monotonic() - since
        return [
            key
            for key, size in self._sizes.items()
            if least <= size <= most and self._used.get(key, math.inf) <= before
        ]

    def forget(self, key: str) -> None:
        """Forget a blob whose file is reused for another one."""
        self._uncount(key)
        self._used.pop(key, None)

    def touch(self, keys: Iterable[str]) -> None:
        """Mark blobs as the most recently used ones."""
        for key in keys:
            for sizes in (self._sizes, self._spill.sizes):
                if key in sizes:
                    sizes.move_to_end(key)

    def trim(self, wanted: frozenset[str] = frozenset()) -> list[str]:
        """Move or drop blobs that are not ``wanted`` until the limits are met.

        Returns
        -------
        list of str
            The digests of the dropped ones.
        """
        dropped = []
        is_full = self._total > self._limit
        for key in [key for key in self._sizes if key not in wanted] if is_full else ():
            if self._total <= self._limit:
                break
            size = self._uncount(key)
            if self._spill.has_room(size):
                self._spill.add(key, size)
            else:
                (self.folder / key).unlink(missing_ok=True)
                dropped.append(key)
        return dropped + self._spill.trim(wanted)

    def drop(self, keys: Iterable[str]) -> list[str]:
        """Remove blobs; return those of them that were here."""
        dropped = [key for key in keys if key in self]
        for key in dropped:
            self._spill.drop(key)
            if key in self._sizes:
                self.forget(key)
                (self.folder / file_name(key)).unlink(missing_ok=True)
        return dropped

    @property
    def is_taken(self) -> bool:
        """Whether somebody else has made a folder of that name, where everybody may, after it went.

        What is in it is theirs, and would be unpickled.
        """
        try:
            found = self.folder.lstat()
        except FileNotFoundError:
            return False
        return found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)

    def restore(self) -> list[str]:
        """Make the folder again, which is gone; return the digests of the blobs that went with it.

        systemd removes what users have in shared memory when the last of their sessions ends, as
        with the notebook's connection, where it was not told to keep that (``RemoveIPC=no``).
        """
        self.folder.mkdir(mode=0o700)
        self.drop_stalled(0)
        return self.drop([*self._sizes, *self._spill.sizes])

    def remove(self) -> None:
        """Remove all blobs."""
        self._spill.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Spill:
    """The blobs on disk, each with a link in the folder where ranks look."""

    def __init__(self, links: Path, folder: Path | None, limit: int) -> None:
        self.folder = folder
        self.sizes: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._links = links
        self._limit = limit if folder else 0
        self._lock = threading.Lock()
        # In a thread: disks are slow, and the agent's loop has to answer its links in time.
        self._mover = ThreadPoolExecutor(1, "sky-spill")
        if folder:
            folder.mkdir(mode=0o700, exist_ok=True)

    def has_room(self, size: int) -> bool:
        """Return whether a blob fits here at all; `trim` makes room for it."""
        return size <= self._limit

    def add(self, key: str, size: int) -> None:
        """Move a blob here, in another thread; it can be mapped meanwhile."""
        self.sizes[key] = size
        self._mover.submit(self._move, key)

    def _move(self, key: str) -> None:
        assert self.folder is not None
        path, part = self.folder / key, new_part(self.folder)
        # A blob that cannot be moved stays where it is, but is counted here.
        with contextlib.suppress(OSError):
            shutil.copyfile(self._links / key, part)
            with self._lock:
                if key in self.sizes:
                    part.rename(path)
                    replace_by_link(self._links / key, path)
        part.unlink(missing_ok=True)

    def trim(self, wanted: frozenset[str]) -> list[str]:
        """Drop blobs that are not ``wanted`` until the limit is met; return their digests."""
        dropped = []
        total = sum(self.sizes.values())
        for key in [key for key in self.sizes if key not in wanted]:
            if total <= self._limit:
                break
            total -= self.drop(key)
            dropped.append(key)
        return dropped

    def drop(self, key: str) -> int:
        """Remove a blob, if it is here; return its size."""
        with self._lock:
            if (size := self.sizes.pop(key, None)) is None:
                return 0
            (self._links / key).unlink(missing_ok=True)
            if self.folder:
                (self.folder / key).unlink(missing_ok=True)
        return size

    def remove(self) -> None:
        """Remove all of them."""
        self._mover.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self.sizes.clear()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def store_of_node(folder: Path, blobs: Path, limit: int | None) -> BlobStore:
    """Return the store of a node.

    Parameters
    ----------
    folder
        The node's folder, where there is room for blobs on disk.
    blobs
        Where ranks find them.
    limit
        Most bytes to keep there, if the user has said so.
    """
    is_elsewhere = folder.stat().st_dev != blobs.stat().st_dev and not _is_in_memory(folder)
    disk = folder / SPILLED if is_elsewhere else None
    return BlobStore(blobs, limit or default_limit(blobs), disk, default_limit(folder))


def _is_in_memory(folder: Path) -> bool:
    """Return whether files of a folder are in memory, as those of /tmp are on many systems."""
    kinds = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    real = folder.resolve()
    return next((kinds[each] for each in (real, *real.parents) if each in kinds), "") in _IN_MEMORY


def default_limit(folder: Path) -> int:
    """Return how many bytes of blobs a node keeps: half of the free space in their folder."""
    return shutil.disk_usage(folder).free // 2
