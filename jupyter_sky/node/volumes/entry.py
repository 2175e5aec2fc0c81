"""A file of a volume, as it is in the bucket and on the node."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_sky.node.volumes.bucket import Listed

Mark = tuple[int, int, int]
"""Inode, size and time of change of a file: what tells whether ranks have written it."""


@dataclass(eq=False)
class Fetching:
    """A fetch in progress.

    Attributes
    ----------
    ended
        Set once it has ended.
    trouble
        Why it failed; empty if it did not.
    is_late
        Whether it was given up since Linux lets programs wait no longer.
    """

    ended: threading.Event = field(default_factory=threading.Event)
    trouble: str = ""
    is_late: bool = False


@dataclass(eq=False)
class FileEntry:
    """A file of the bucket.

    Attributes
    ----------
    name, listed
        Its name relative to the volume, and its state in the bucket.
    source
        Its name in the bucket, which stays the same if ranks move the file.
    fd
        The descriptor of its lease, while it has no content.
    mark
        Its state when it was fetched or written back.
    used
        When it was last read, in nanoseconds, as far as is known.
    is_own
        Whether this node has written it.
    fetching
        The fetch in progress; ``None`` if there is none.
    is_lacking
        Whether programs were let into it without its content, as that could not be fetched.
    may_replace
        Whether what they write may then take the place of what the bucket has.
    """

    name: str
    listed: Listed
    source: str
    fd: int | None = None
    mark: Mark | None = None
    used: int = 0
    is_own: bool = False
    fetching: Fetching | None = field(default=None, repr=False)
    is_lacking: bool = False
    may_replace: bool = False


_BEFORE = 10**9
"""Nanoseconds by which files are made older, so that each later change shows in their times."""

_WRITTEN_DOWN = "user.jupyter_sky.in_the_bucket"


def write_down(file: int | Path, name: str) -> None:
    """Record on disk that a file equals the bucket's, in case this process is killed.

    Some file systems do not support this; all of their files then count as changed.
    """
    with contextlib.suppress(OSError):
        os.setxattr(file, _WRITTEN_DOWN, _as_now(os.stat(file), name))  # noqa: PTH116 - or a number


def is_in_the_bucket(path: Path, name: str) -> bool:
    """Return whether a file was neither changed nor moved since that was recorded."""
    with contextlib.suppress(OSError):
        return os.getxattr(path, _WRITTEN_DOWN) == _as_now(path.lstat(), name)
    return False


def _as_now(found: os.stat_result, name: str) -> bytes:
    return f"{found.st_size} {found.st_mtime_ns} {name}".encode(errors="surrogateescape")


def mark_of(found: os.stat_result) -> Mark:
    """Return a mark that shows whether a file is changed later."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def set_age(fd: int) -> None:
    """Make a file older than the clocks of file systems tell apart, and unread since then."""
    now = time.time_ns()
    os.utime(fd, ns=(now - 2 * _BEFORE, now - _BEFORE))
