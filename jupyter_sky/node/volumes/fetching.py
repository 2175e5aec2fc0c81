"""Fetches the content of a volume's files: each only once, however many wait for it."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from jupyter_sky.node.volumes.bucket import BucketError, Listed
from jupyter_sky.node.volumes.entry import FileEntry
from jupyter_sky.node.volumes.leases import break_time
from jupyter_sky.node.volumes.tree import Tree

PART = 8 * 1024 * 1024
"""Bytes that are fetched at a time; a link that breaks costs no more than these."""

_AT_ONCE = 4  # parts of one file at a time
_ATTEMPTS = 5
_FIRST_PAUSE = 0.2  # seconds before the next attempt, doubled each time
_MARGIN = 5.0  # seconds before Linux lets waiting programs continue


class Fetcher:
    """Fetches files of volumes.

    Parameters
    ----------
    workers
        How many files to fetch at a time.
    """

    def __init__(self, workers: int = 16) -> None:
        self._files = ThreadPoolExecutor(workers, "fetch")
        self._parts = ThreadPoolExecutor(2 * workers, "part")
        self.troubles: dict[str, str] = {}
        """Why files could not be fetched, by their paths, since this was last asked for."""

    def begin(self, tree: Tree, entry: FileEntry, asked: float | None = None) -> Future[str]:
        """Fetch a file in the background.

        Parameters
        ----------
        asked
            Since when a program waits in Linux for it, by the monotonic clock.

        Returns
        -------
        Future
            A future of the reason why it could not be fetched; empty if it could.
        """
        return self._files.submit(self.fetch, tree, entry, asked)

    def fetch(self, tree: Tree, entry: FileEntry, asked: float | None = None) -> str:
        """Fetch a file, or wait for a fetch in progress; return why it failed, if it did."""
        with tree.lock:
            if entry.fd is None:
                return ""
            going, mine = entry.fetching, threading.Event()
            entry.fetching = going or mine
        if going:
            going.wait()
            return self.troubles.get(str(tree.path / entry.name), "") if entry.mark is None else ""
        path = str(tree.path / entry.name)
        try:
            size = self._download(tree, entry, asked)
            tree.finish(entry, size)
            self.troubles.pop(path, None)
            return ""
        except (BucketError, OSError) as error:
            trouble = str(error) if isinstance(error, BucketError) else _in_words(error)
            self.troubles[path] = trouble
            tree.give_up(entry)
            return trouble
        finally:
            mine.set()

    def _download(self, tree: Tree, entry: FileEntry, asked: float | None) -> int:
        """Fetch the content into the file; return its size.

        Raises
        ------
        BucketError, OSError
            If it cannot be fetched, or there is no room for it.
        """
        until = asked + break_time() - _MARGIN if asked is not None else None
        if entry.listed.size <= PART:
            data = self._read(tree, entry, None, None)
            _write(tree, entry, data, 0)
            assert entry.fd is not None
            os.ftruncate(entry.fd, len(data))
            return len(data)
        while True:
            before = tree.bucket.info(entry.source)
            self._download_parts(tree, entry, before.size, until)
            if (after := tree.bucket.info(entry.source)) == before:
                entry.listed = Listed(after.size, entry.listed.tag)
                assert entry.fd is not None
                os.ftruncate(entry.fd, after.size)
                return after.size

    def _download_parts(self, tree: Tree, entry: FileEntry, size: int, until: float | None) -> None:
        for first in range(0, size, PART * _AT_ONCE):
            if until is not None and time.monotonic() > until:
                raise BucketError(
                    f"it is too large to be fetched while it is opened: "
                    f'sky.volume("{tree.path}").fetch("{entry.name}") waits for it'
                )
            starts = range(first, min(first + PART * _AT_ONCE, size), PART)
            parts = [
                self._parts.submit(self._read, tree, entry, start, min(start + PART, size))
                for start in starts
            ]
            for start, part in zip(starts, parts, strict=True):
                _write(tree, entry, part.result(), start)

    def _read(self, tree: Tree, entry: FileEntry, start: int | None, end: int | None) -> bytes:
        """Return a part of a file, retrying broken links within limits."""
        pause = _FIRST_PAUSE
        for left in reversed(range(_ATTEMPTS)):
            try:
                return tree.bucket.read(entry.source, start, end)
            except BucketError as error:
                if not left or error.is_final:
                    raise
                time.sleep(pause)
                pause *= 2
        raise AssertionError


def _write(tree: Tree, entry: FileEntry, data: bytes, start: int) -> None:
    """Write a part of a file; if the disk is full, drop other files to make room."""
    assert entry.fd is not None
    view, rest = memoryview(data), 0
    made_room = False
    while rest < len(data):
        try:
            rest += os.pwrite(entry.fd, view[rest:], start + rest)
        except OSError as error:
            if not _is_full(error) or made_room:
                raise
            tree.drop(0)
            made_room = True


def _in_words(error: OSError) -> str:
    return "the disk of the node is full" if _is_full(error) else error.strerror or str(error)


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
