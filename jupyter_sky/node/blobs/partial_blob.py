"""A blob that is arriving on a node, or that a rank writes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from pathlib import Path

import blake3

SPILLED = "spilled"
"""In the node's folder, the one for blobs for which there is no room in memory."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class PartialBlob:
    """A blob that is arriving in a file.

    Pieces are written rather than received into mapped memory: the system fills a new page of
    shared memory much faster in a write than in the page fault that a mapping would take.

    Parameters
    ----------
    path
        Where ranks will find it.
    full_size
        How many bytes it will have.
    disk
        A folder on disk for it if there is no room at ``path``, which then is a link; or ``None``.
    is_spilled
        Whether to begin there.

    Attributes
    ----------
    path
        The file in which it arrives.
    size
        Bytes that have arrived.
    changed
        When the last of them did, by the monotonic clock.
    is_spilled
        Whether it is on the disk, with a link where ranks find it.
    """

    def __init__(
        self, path: Path, full_size: int, disk: Path | None = None, is_spilled: bool = False
    ) -> None:
        self._final_path = path
        self._disk = disk
        self.is_spilled = disk is not None and is_spilled
        self.full_size = full_size
        self.path = new_part(disk if disk and is_spilled else path.parent)
        self._file = self.path.open("wb", buffering=0)
        self._hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        self.size = 0
        self.changed = time.monotonic()

    def write(self, piece: memoryview) -> None:
        """Append a piece; ``OSError`` when there is no room."""
        self.size += piece.nbytes
        self.changed = time.monotonic()
        # Hashed now, while it is in the processor's cache.
        self._hasher.update(piece)
        while piece.nbytes:
            try:
                piece = piece[self._file.write(piece) :]
            except OSError as error:
                if error.errno not in NO_ROOM or self._disk is None or self.is_spilled:
                    raise
                self._move(self._disk)

    def _move(self, disk: Path) -> None:
        """Go on on the disk: others have filled the memory since this began to arrive."""
        before, self.path = self.path, new_part(disk)
        self._file.close()
        self.is_spilled = True
        try:
            shutil.copyfile(before, self.path)
        finally:
            before.unlink()
        self._file = self.path.open("ab", buffering=0)

    def complete(self, key: str) -> bool:
        """Give it its name if its digest is right, and return whether it is."""
        self._file.close()
        if self._hasher.hexdigest() != key:
            self.discard()
            return False
        if self.is_spilled:
            replace_by_link(self._final_path, self.path.rename(self.path.parent / key))
        else:
            self.path.rename(self._final_path)
        return True

    def discard(self) -> None:
        """Remove what has arrived."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def write_blob(path: Path, data: memoryview, spill: Path | None) -> None:
    """Write a blob where ranks find it or, if there is no room, with a link there.

    Parameters
    ----------
    path
        Where ranks find it.
    data
        Its content.
    spill
        The folder on disk for those for which there is no room; ``None`` for no such folder.

    Raises
    ------
    OSError
        If there is no room on the disk either.
    """
    # Ranks of a node may write the same blob at once; each rename yields a complete one.
    part = new_part(path.parent)
    try:
        try:
            part.write_bytes(data)
            part.rename(path)
        except OSError as error:
            if spill is None or error.errno not in NO_ROOM:
                raise
            part.unlink(missing_ok=True)
            # Through a link, by which `drop_unfinished` finds it.
            part.symlink_to(spill / part.name)
            part.write_bytes(data)
            replace_by_link(path, part.readlink().rename(spill / path.name))
            part.unlink()
    except BaseException:
        _remove(part)
        raise


def replace_by_link(path: Path, target: Path) -> None:
    """Put a link to ``target`` in the place of a file, in one step."""
    new = new_part(path.parent)
    new.symlink_to(target)
    new.rename(path)


def new_part(folder: Path, writer: int | None = None) -> Path:
    """Return a new name for what a process, by default this one, writes among blobs.

    What it had not finished when it ended is removed by who notices that (`drop_unfinished`).
    """
    return folder / f"{writer or os.getpid()}-{uuid.uuid4().hex}.part"


def drop_unfinished(folder: Path, writer: int) -> None:
    """Remove what a process was writing among blobs when it ended."""
    with contextlib.suppress(OSError):  # no descriptor left to look with
        for part in folder.glob(f"{writer}-*.part"):
            _remove(part)


def _remove(part: Path) -> None:
    """Remove what was being written, on the disk if this is a link to it."""
    if part.is_symlink():
        part.readlink().unlink(missing_ok=True)
    part.unlink(missing_ok=True)
