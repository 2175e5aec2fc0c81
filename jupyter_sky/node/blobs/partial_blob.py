"""A blob that is arriving on a node, or that a rank writes."""

from __future__ import annotations

import contextlib
import errno
import os
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
    spill
        The folder in which it will be, with a link at ``path``; ``None`` for no such folder.

    Attributes
    ----------
    path
        The file in which it arrives.
    size
        Bytes that have arrived.
    changed
        When the last of them did, by the monotonic clock.
    """

    def __init__(self, path: Path, full_size: int, spill: Path | None = None) -> None:
        self._final_path = path
        self._spill = spill
        self.full_size = full_size
        self.path = new_part(spill or path.parent)
        self._file = self.path.open("wb", buffering=0)
        self._hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
        self.size = 0
        self.changed = time.monotonic()

    @property
    def is_spilled(self) -> bool:
        """Whether it is on the disk, with a link where ranks find it."""
        return self._spill is not None

    def write(self, piece: memoryview) -> None:
        """Append a piece; ``OSError`` when there is no room."""
        self.size += piece.nbytes
        self.changed = time.monotonic()
        # Hashed now, while it is in the processor's cache.
        self._hasher.update(piece)
        while piece.nbytes:
            piece = piece[self._file.write(piece) :]

    def complete(self, key: str) -> bool:
        """Give it its name if its digest is right, and return whether it is.

        Raises
        ------
        OSError
            If there is no room for the link to it.
        """
        self._file.close()
        if self._hasher.hexdigest() != key:
            self.discard()
            return False
        if self._spill:
            replace_by_link(self._final_path, self.path.rename(self._spill / key))
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
        remove_blob(part)
        raise


def replace_by_link(path: Path, target: Path) -> None:
    """Put a link to ``target`` in the place of a file; remove ``target`` if that fails."""
    new = new_part(path.parent)
    try:
        new.symlink_to(target)  # which takes memory, too, if its path is long
        new.rename(path)
    except OSError:
        target.unlink(missing_ok=True)
        raise


def new_part(folder: Path, writer: int | None = None) -> Path:
    """Return a new name for what a process, by default this one, writes among blobs.

    What it had not finished when it ended is removed by who notices that (`drop_unfinished`).
    """
    return folder / f"{writer or os.getpid()}-{uuid.uuid4().hex}.part"


def drop_unfinished(folder: Path, writer: int) -> None:
    """Remove what a process was writing among blobs when it ended."""
    with contextlib.suppress(OSError):  # no descriptor left to look with
        for part in folder.glob(f"{writer}-*.part"):
            remove_blob(part)


def remove_blob(path: Path) -> None:
    """Remove a blob, or a part of one: also the file on disk, if this is a link to it."""
    if path.is_symlink():
        path.readlink().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
