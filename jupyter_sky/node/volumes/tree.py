"""The files of a volume on the node's disk: all are visible, and fetched when opened.

A file that was not fetched yet exists with its size, but without content. A lease delays programs
that open it until it is fetched; its sticky bit marks it as having no content. If fetched files
take up more than their limit, the least recently used ones lose their content again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from jupyter_sky.node.volumes.bucket import Bucket, BucketError, Listed
from jupyter_sky.node.volumes.entry import FileEntry, mark_of, set_age, write_down
from jupyter_sky.node.volumes.leases import Leases
from jupyter_sky.node.volumes.place import (
    HeldFolder,
    VolumeError,
    check_descriptors,
    check_size,
    is_place,
    make_place,
    remove_place,
)
from jupyter_sky.node.volumes.walking import files_of, is_ours
from jupyter_sky.transport.volumes.asking import ABSENT, NEW, note_places
from jupyter_sky.transport.volumes.requests import VolumeOrder

_DOWN_TO = 0.9  # fraction of the limit to shrink to


class Tree:
    """The files of one volume.

    Parameters
    ----------
    order
        The requested volume.
    leases
        The leases of this process.
    socket
        Where ranks can send requests; a note in the volume has it.

    Attributes
    ----------
    note
        A sentence for the user about what was there before.
    is_lazy
        Whether files can be fetched when opened; otherwise all have to be fetched beforehand.
    told
        The symbolic links that were already reported as not written.
    """

    def __init__(self, order: VolumeOrder, leases: Leases, socket: str) -> None:
        self.order = order
        self.bucket = Bucket(order)
        self.path = Path(order["path"]).expanduser()
        self.entries: dict[str, FileEntry] = {}
        self.by_fd: dict[int, FileEntry] = {}
        self.told: set[str] = set()
        self.skipped: set[str] = set()
        self.lock = threading.RLock()
        self.here = 0
        self.fetched = 0
        self._leases = leases
        self._socket = socket
        self.is_lazy = True
        self._folder: HeldFolder | None = None  # set while the folder is ours
        self.note = ""
        self._notes = frozenset(map(str, note_places(self.path)))
        self._numbers = itertools.count(1)
        self._mode = 0o444 if order["read_only"] else 0o644  # less what the umask takes away

    def make(self) -> None:
        """Show all files of the bucket at the path.

        Raises
        ------
        VolumeError, BucketError
            If that fails; nothing is left then.
        """
        listing = self.bucket.list()
        if not listing and self.order["read_only"]:
            raise BucketError(f"there is nothing at {self.bucket.url}")
        note = {
            "url": self.bucket.url,
            "socket": self._socket,
            "pid": os.getpid(),
            "path": str(self.path),
            "read_only": self.order["read_only"],
        }
        self._folder, self.note = make_place(self.path, note)
        try:
            if not self.order["limit"]:
                self.order["limit"] = max(shutil.disk_usage(self.path).free // 2, 1)
            self.show(listing, {})
            if not self.is_lazy:
                size = sum(each.size for each in listing.values())
                check_size(size, self.order["limit"], self.path, self.bucket.url)
        except OSError as error:
            self.remove()
            raise VolumeError(f"{self.path}: {error.strerror}") from None
        except BaseException:
            self.remove()
            raise

    def show(self, listing: dict[str, Listed], known: Mapping[str, FileEntry]) -> None:
        """Show these files of the bucket, except those that ranks have changed or written since.

        These have another entry than the one `known` before the bucket was listed.
        """
        check_descriptors(len(listing), self.bucket.url)
        for name in sorted(listing):
            before = self.entries.get(name)
            if before is not known.get(name) or (before and before.listed == listing[name]):
                continue
            if not is_place(name):
                self.skipped.add(name)
                continue
            if before is None and (self.path / name).exists():
                continue  # a rank has written it, and it was not written back yet
            if before is None or self.is_as_was(before):
                self._show(name, listing[name])
        for name, entry in known.items():
            is_same = entry is self.entries.get(name) and entry.name == entry.source
            if name not in listing and is_same and self.is_as_was(entry):
                with self.lock, contextlib.suppress(OSError):
                    (self.path / name).unlink()
                    self.forget(entry)

    def _show(self, name: str, listed: Listed) -> None:
        if name.startswith("/") or is_ours(f"{self.path}/{name}", self._notes):
            return
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            if (self.path / name).is_dir():
                raise IsADirectoryError
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            self.skipped.add(name)  # a bucket can have `a` and `a/b`, a disk cannot
            return
        if (before := self.entries.get(name)) and before.mark and self.is_lazy:
            with self.lock, contextlib.suppress(OSError):
                self._drop(before)
            if before.mark:  # somebody has it open, and may be about to write it
                return
        entry = FileEntry(name, listed, name)
        entry.is_own = before is not None and before.is_own and before.listed.size == listed.size
        self._place(entry)
        if before:
            self.forget(before, but=entry)

    def _place(self, entry: FileEntry) -> None:
        """Create the file of an entry without content, atomically."""
        new = (self.path / entry.name).with_name(f".{next(self._numbers)}{NEW}")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        try:
            os.ftruncate(fd, entry.listed.size)
            if self.is_lazy and entry.listed.size:
                try:
                    self._leases.take(fd)
                except OSError:
                    self.is_lazy = False
            write_down(fd, entry.name)
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | ABSENT * bool(entry.listed.size))
            with self.lock:
                new.replace(self.path / entry.name)
                self.entries[entry.name] = entry
                if entry.listed.size:
                    entry.fd, entry.mark = fd, None
                    self.by_fd[fd] = entry
                else:
                    entry.mark = mark_of(os.fstat(fd))
        finally:
            if entry.fd != fd:
                os.close(fd)

    def forget(self, entry: FileEntry, but: FileEntry | None = None) -> None:
        """Forget an entry whose file is gone."""
        with self.lock:
            if entry.fd is not None:
                self.by_fd.pop(entry.fd, None)
                os.ftruncate(entry.fd, 0)  # who waits for it finds no zeros
                self.release(entry.fd)
                entry.fd = None
            elif entry.mark:
                self.here -= entry.mark[1]
            if but is None and self.entries.get(entry.name) is entry:
                del self.entries[entry.name]

    def is_as_was(self, entry: FileEntry) -> bool:
        """Return whether no rank has changed a file since it was fetched or shown, or may soon."""
        if (fd := entry.fd) is not None and (entry.fetching or self._leases.is_asked_for(fd)):
            return False
        return self.is_unchanged(entry)

    def is_unchanged(self, entry: FileEntry) -> bool:
        """Return the same of a file that a program may wait for: that alone changes nothing."""
        with self.lock, contextlib.suppress(OSError):
            found = os.lstat(self.path / entry.name)
            if entry.fd is not None:
                return found.st_ino == os.fstat(entry.fd).st_ino
            return mark_of(found) == entry.mark
        return False

    # Content

    def finish(self, entry: FileEntry, size: int) -> None:
        """Release programs that wait for a file whose content has arrived."""
        with self.lock:
            entry.used = time.time_ns()
            self.here += size
            self.fetched += 1
            self.let_in(entry)
        # Of this volume alone: another one may be waiting for this one's lock meanwhile.
        self.make_room()

    def let_in(self, entry: FileEntry) -> None:
        """Let programs open a file as it is now."""
        fd = entry.fd
        assert fd is not None
        with self.lock:
            # So that the next read, and a change at once, show in its times.
            set_age(fd)
            write_down(fd, entry.name)
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~ABSENT)
            entry.mark, entry.fd = mark_of(os.fstat(fd)), None
            self.by_fd.pop(fd, None)
            self.release(fd)

    def drop(self, wanted: int) -> None:
        """Drop the content of the least recently used files, down to that many bytes.

        Files that are open or changed keep their content.
        """
        if self.here <= wanted or not self.is_lazy:
            return
        with self.lock:
            there = [each for each in self.entries.values() if each.mark and each.mark[1]]
        for entry in there:
            self._note_use(entry)
        for entry in sorted(there, key=lambda each: each.used):
            if self.here <= wanted:
                break
            with self.lock, contextlib.suppress(OSError):
                self._drop(entry)

    def make_room(self) -> None:
        """Drop content if there is more than the limit allows."""
        if self.here > self.order["limit"]:
            self.drop(int(self.order["limit"] * _DOWN_TO))

    def _note_use(self, entry: FileEntry) -> None:
        """Find out whether a file was read since the last check."""
        path = self.path / entry.name
        with contextlib.suppress(OSError):
            found = path.stat()
            if found.st_atime_ns > found.st_mtime_ns:
                entry.used = max(entry.used, found.st_atime_ns)
                if mark_of(found) == entry.mark:
                    # Many file systems only update the access time if it is older than the
                    # modification.
                    os.utime(path, ns=(found.st_mtime_ns - 10**9, found.st_mtime_ns))

    def _drop(self, entry: FileEntry) -> None:
        if (mark := entry.mark) and self.is_as_was(entry) and self.take_content(entry):
            self.here -= mark[1]

    def take_content(self, entry: FileEntry) -> bool:
        """Make an unchanged file one without content, unless somebody has it open.

        Returns
        -------
        bool
            Whether it is one now.
        """
        assert entry.mark is not None
        path, when = self.path / entry.name, entry.mark[2]
        mode = stat.S_IMODE(path.lstat().st_mode)
        path.chmod(mode | stat.S_IWUSR)  # it may be read-only
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._leases.take(fd)
        except OSError:  # somebody has it open
            os.fchmod(fd, mode)
            os.close(fd)
            return False
        if mark_of(os.fstat(fd)) != entry.mark:  # written just before nobody could any more
            os.fchmod(fd, mode)
            self.release(fd)
            return False
        # From here on a program may be waiting to open it, whatever goes wrong below.
        entry.fd, entry.mark = fd, None
        self.by_fd[fd] = entry
        os.fchmod(fd, mode | ABSENT)
        os.ftruncate(fd, 0)
        os.ftruncate(fd, entry.listed.size)
        os.utime(fd, ns=(when, when))
        return True

    def release(self, fd: int) -> None:
        """Close a file, and let programs that wait for it continue."""
        if self.is_lazy:
            self._leases.release(fd)
        os.close(fd)

    # Files that ranks have written

    def changed(self, only: Collection[str] = ()) -> list[str]:
        """Return the names of files that exist only on this node, or in folders we cannot read."""
        found: list[str] = []
        by_inode: dict[int, FileEntry] | None = None
        for name, seen in files_of(self.path, self._notes, found.append, only):
            with self.lock:
                entry = self.entries.get(name)
                if entry is None:
                    if seen.st_mode & ABSENT and by_inode is None:
                        by_inode = self._by_inode()
                    if seen.st_mode & ABSENT and (moved := (by_inode or {}).get(seen.st_ino)):
                        self.entries[name] = self.entries.pop(moved.name)
                        moved.name = name
                    found.append(name)
                elif entry.name != entry.source or not self.is_unchanged(entry):
                    found.append(name)
        return found

    def is_there(self) -> bool:
        """Return whether the folder was neither removed nor replaced, as where a disk is gone."""
        return self._folder is not None and self._folder.is_there()

    def removed(self, folders: Sequence[str] = ()) -> list[str]:
        """Return files that were removed: of those in these folders, or that this node wrote."""
        below = tuple(f"{folder}/" for folder in folders) or ("",)
        with self.lock:
            names = [each.name for each in self.entries.values() if folders or each.is_own]
        asked = [name for name in names if name.startswith(below)]
        gone = [name for name in asked if not os.path.lexists(self.path / name)]
        # Looked at last, as it may be gone since; of what ranks name, another folder says as much.
        return gone if self.is_there() or (folders and self.path.is_dir()) else []

    def outside(self) -> list[FileEntry]:
        """Return files that were moved out of the volume before anybody read them."""
        with self.lock:
            absent = [(fd, each) for fd, each in self.by_fd.items() if not each.fetching]
            return [
                each
                for fd, each in absent
                if not os.path.lexists(self.path / each.name) and os.fstat(fd).st_nlink
            ]

    def find(self, name: str) -> FileEntry | None:
        """Return the entry of a file, which may have been moved there."""
        with self.lock, contextlib.suppress(FileNotFoundError):
            if (found := self.entries.get(name)) is None:
                found = self._by_inode().get(os.lstat(self.path / name).st_ino)
            return found
        return None

    def _by_inode(self) -> dict[int, FileEntry]:
        return {os.fstat(fd).st_ino: each for fd, each in self.by_fd.items()}

    def is_written(self, name: str, before: os.stat_result, listed: Listed) -> bool:
        """Mark a file as written back as ``listed``, unless it has changed since ``before``."""
        with self.lock:
            found = os.lstat(self.path / name)
            if mark_of(found) != mark_of(before):
                return False
            if former := self.entries.get(name):
                self.forget(former)
            write_down(self.path / name, name)
            made = FileEntry(name, listed, name, mark=mark_of(found), is_own=True)
            made.used = time.time_ns()
            self.entries[name] = made
            self.here += found.st_size
            return True

    def remove(self) -> list[str]:
        """Remove everything except files that exist only on this node; return their names."""
        folder, self._folder = self._folder, None
        if folder is None:
            return []
        changed = self.changed() if not self.order["read_only"] else []
        with self.lock:
            # What was moved before anybody read it is in the bucket; what has replaced it is not.
            unread = {each.name for each in self.by_fd.values() if self.is_unchanged(each)}
            left = [name for name in changed if name not in unread]
            kept = {self.path / name for name in left}
            for name in list(self.entries):
                if self.path / name not in kept:
                    with contextlib.suppress(OSError):
                        (self.path / name).unlink()
                self.forget(self.entries[name])
        remove_place(self.path, kept, folder)
        return left
