"""Fetches the content of a volume's files: each only once, however many wait for it."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from jupyter_sky.node.volumes.bucket import BucketError, Listed, patiently
from jupyter_sky.node.volumes.entry import Fetching, FileEntry
from jupyter_sky.node.volumes.lacking import empty, take_back
from jupyter_sky.node.volumes.leases import break_time
from jupyter_sky.node.volumes.tree import Tree

PART = 8 * 1024 * 1024
"""Bytes that are fetched at a time; a link that breaks costs no more than these."""

_AT_A_TIME = 16  # files of each kind: those that programs wait for, and those ahead
_AT_ONCE = 4  # parts of one file at a time
_ATTEMPTS = 5
_PAUSES = (0.2, 0.4, 0.8, 1.6)  # seconds before the next attempts at a part
_LOOK = 0.05  # seconds between two looks at who waits, and at what nobody has open any more
_OPENED_WITHIN = 2.0  # seconds in which a program opens what it has said that it replaces
_CLOSED_WITHIN = 5.0  # seconds in which programs that were let go have read that there is nothing
_FAILED = "the process that keeps the volumes has failed"
_OPEN = "it could not be fetched, and a program still has it open"
_MARGIN = 5.0  # seconds before Linux lets waiting programs continue


class _GivenUp(Exception):
    """The programs that waited for a file were let go meanwhile."""


class Fetcher:
    """Fetches files of volumes."""

    def __init__(self) -> None:
        # Programs that wait do not wait for what is fetched ahead.
        self._files = ThreadPoolExecutor(_AT_A_TIME, "fetch")
        self._ahead = ThreadPoolExecutor(_AT_A_TIME, "ahead")
        self._parts = ThreadPoolExecutor(2 * _AT_A_TIME, "part")
        self._waiting: dict[FileEntry, tuple[float, int, Tree]] = {}
        self._lacking: dict[FileEntry, tuple[float, Tree]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._look, daemon=True).start()
        self.troubles: dict[str, str] = {}
        """Why files could not be fetched, by their paths, since this was last asked for."""

    def begin(self, tree: Tree, entry: FileEntry) -> Future[str]:
        """Fetch a file ahead, in the background.

        Returns
        -------
        Future
            A future of the reason why it could not be fetched; empty if it could.
        """
        return self._ahead.submit(self.fetch, tree, entry)

    def open(self, tree: Tree, entry: FileEntry, asked: float) -> None:
        """Fetch a file that a program opens, in the background.

        Parameters
        ----------
        asked
            Since when the program waits in Linux for it, by the monotonic clock.
        """
        with tree.lock:
            if (fd := entry.fd) is None:
                return
        with self._changed:
            self._waiting[entry] = asked + break_time() - _MARGIN, fd, tree
            self._changed.notify()
        self._files.submit(self.fetch, tree, entry, is_timed=True)

    def fetch(self, tree: Tree, entry: FileEntry, is_timed: bool = False) -> str:
        """Fetch a file, or wait for a fetch in progress; return why it failed, if it did.

        Parameters
        ----------
        is_timed
            Whether this is for a program that is let go after a while.
        """
        closed_until = 0.0 if is_timed else time.monotonic() + _CLOSED_WITHIN
        while True:
            with tree.lock:
                with self._changed:
                    if is_timed and entry not in self._waiting:
                        return ""  # told twice that it was opened, and the wait is over
                is_open = not take_back(tree, entry)
                if not is_open:
                    if entry.fd is None:
                        return ""
                    going, mine = entry.fetching, Fetching()
                    entry.fetching = going or mine
                elif time.monotonic() > closed_until:
                    return self.troubles.get(str(tree.path / entry.name), _OPEN)
            if is_open:
                time.sleep(_LOOK)
                continue
            if going:
                going.ended.wait()
            else:
                self._fetch(tree, entry, mine)
            ended = going or mine
            if not ended.is_late or is_timed:
                return ended.trouble
            closed_until = time.monotonic() + _CLOSED_WITHIN

    def let_in(self, tree: Tree, entry: FileEntry) -> None:
        """Have a file ready for a program that replaces its content, without fetching it."""
        with tree.lock:
            if entry.fd is not None and entry.fetching is None:
                self._empty(tree, entry, True, time.monotonic() + _OPENED_WITHIN)

    def look_for_closed(self) -> None:
        """Have files fetched again that could not be, if no program has them open any more."""
        with self._changed:
            lacking = list(self._lacking.items())
        for entry, (until, tree) in lacking:
            with tree.lock:
                if time.monotonic() > until and take_back(tree, entry):
                    with self._changed:
                        self._lacking.pop(entry, None)

    def _fetch(self, tree: Tree, entry: FileEntry, mine: Fetching) -> None:
        """Fetch a file; ``mine`` is the fetch in progress."""
        trouble, is_gone = _FAILED, False
        try:
            self._download(tree, entry, mine)
            trouble = ""
        except _GivenUp:
            trouble = ""  # whoever has let the programs go has said why
        except (BucketError, OSError) as error:
            trouble = str(error) if isinstance(error, BucketError) else _in_words(error)
            is_gone = isinstance(error, BucketError) and error.is_gone
        finally:
            with tree.lock:
                if entry.fetching is mine:
                    self._end(tree, entry, trouble, is_gone)

    def _end(self, tree: Tree, entry: FileEntry, trouble: str, is_gone: bool = False) -> None:
        """End a fetch, or the wait for one; let programs continue."""
        going, entry.fetching = entry.fetching, None
        with self._changed:
            self._waiting.pop(entry, None)
        if trouble and entry.fd is not None:
            self.troubles[str(tree.path / entry.name)] = trouble
            self._empty(tree, entry, is_gone, time.monotonic())
            take_back(tree, entry)  # at once, unless somebody has waited for it
        elif not trouble:
            self.troubles.pop(str(tree.path / entry.name), None)
        if going:
            going.trouble = trouble
            going.ended.set()

    def _empty(self, tree: Tree, entry: FileEntry, may_replace: bool, until: float) -> None:
        empty(tree, entry, may_replace)
        with self._changed:
            self._lacking[entry] = until, tree
            self._changed.notify()

    def _look(self) -> None:
        while True:
            with self._changed:
                is_idle = not self._waiting and not self._lacking
                self._changed.wait(None if is_idle else _LOOK)
                waiting = list(self._waiting.items())
            for entry, (until, fd, tree) in waiting:
                if self._is_over(tree, entry, until, fd):
                    with self._changed:
                        if self._waiting.get(entry) == (until, fd, tree):
                            del self._waiting[entry]
            self.look_for_closed()

    def _is_over(self, tree: Tree, entry: FileEntry, until: float, fd: int) -> bool:
        """Return whether nobody waits for a file; let programs go if they have waited too long.

        Otherwise Linux would, and they would find zeros instead of what was not fetched.
        """
        with tree.lock:
            if entry.fd == fd and time.monotonic() > until:
                if entry.fetching:
                    entry.fetching.is_late = True
                self._end(tree, entry, _late(tree, entry))
            return entry.fd != fd

    def _download(self, tree: Tree, entry: FileEntry, mine: Fetching) -> None:
        """Fetch the content into the file.

        Raises
        ------
        BucketError, OSError
            If it cannot be fetched, or there is no room for it.
        """
        if entry.listed.size <= PART:
            data = self._read(tree, entry, None, None)
            _write(tree, entry, mine, data, 0)
            _finish(tree, entry, mine, len(data))
            return
        for _ in range(_ATTEMPTS):
            before = tree.bucket.info(entry.source)
            try:
                self._download_parts(tree, entry, mine, before.size)
            except BucketError:
                if tree.bucket.info(entry.source) == before:
                    raise
                continue  # a part of it may not be there any longer
            if tree.bucket.info(entry.source) == before:
                entry.listed = Listed(before.size, entry.listed.tag)
                _finish(tree, entry, mine, before.size)
                return
        raise BucketError("it changes in the bucket while it is fetched")

    def _download_parts(self, tree: Tree, entry: FileEntry, mine: Fetching, size: int) -> None:
        for first in range(0, size, PART * _AT_ONCE):
            starts = range(first, min(first + PART * _AT_ONCE, size), PART)
            parts = [
                self._parts.submit(self._read, tree, entry, start, min(start + PART, size))
                for start in starts
            ]
            for start, part in zip(starts, parts, strict=True):
                _write(tree, entry, mine, part.result(), start)

    def _read(self, tree: Tree, entry: FileEntry, start: int | None, end: int | None) -> bytes:
        """Return a part of a file, retrying broken links within limits."""
        read = partial(tree.bucket.read, entry.source, start, end)
        return patiently(read, _PAUSES, lambda error: not error.is_final)


def _write(tree: Tree, entry: FileEntry, mine: Fetching, data: bytes, start: int) -> None:
    """Write a part of a file; if the disk is full, drop other files to make room."""
    view, rest = memoryview(data), 0
    made_room = False
    while rest < len(data):
        try:
            with tree.lock:
                rest += os.pwrite(_descriptor(entry, mine), view[rest:], start + rest)
        except OSError as error:
            if not _is_full(error) or made_room:
                raise
            tree.drop(0)
            made_room = True


def _finish(tree: Tree, entry: FileEntry, mine: Fetching, size: int) -> None:
    with tree.lock:
        os.ftruncate(_descriptor(entry, mine), size)
        tree.finish(entry, size)


def _descriptor(entry: FileEntry, mine: Fetching) -> int:
    """Return the descriptor of a file as long as this fetch is the one that may write it."""
    if entry.fetching is not mine or entry.fd is None:
        raise _GivenUp
    return entry.fd


def _late(tree: Tree, entry: FileEntry) -> str:
    return (
        "it could not be fetched while it was opened: "
        f'sky.volume("{tree.path}").fetch("{entry.name}") waits for it'
    )


def _in_words(error: OSError) -> str:
    return "the disk of the node is full" if _is_full(error) else error.strerror or str(error)


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
