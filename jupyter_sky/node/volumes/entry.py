"""A file of a volume: what the bucket has of it, and what the node has."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from jupyter_sky.node.volumes.bucket import Listed

Mark = tuple[int, int, int]
"""Inode, size and time of change of a file: what tells whether ranks have written it."""


@dataclass(eq=False)
class Entry:
    """A file of the bucket.

    Attributes
    ----------
    name, listed
        Its name below the volume, and what the bucket has.
    source
        Its name in the bucket, which stays where ranks move it.
    fd
        The descriptor of its lease, while it has no content.
    mark
        How it was when it was fetched, or written back.
    used
        When it was last read, in nanoseconds, as far as is known.
    is_own
        Whether this node has written it.
    fetching
        Is set when somebody has fetched it who began to; ``None`` while nobody does.
    """

    name: str
    listed: Listed
    source: str
    fd: int | None = None
    mark: Mark | None = None
    used: int = 0
    is_own: bool = False
    fetching: threading.Event | None = field(default=None, repr=False)


def mark_of(found: os.stat_result) -> Mark:
    """Return what tells whether a file is changed later."""
    return found.st_ino, found.st_size, found.st_mtime_ns
