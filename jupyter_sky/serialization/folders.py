"""The user's folders, as they are sent to nodes: each file once, by its digest."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_count, format_list
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.selected_files import IGNORE_FILE, entries, unreadable
from jupyter_sky.transport.blobs.sent_folders import (
    FilePart,
    FolderModes,
    SentFile,
    SentFolder,
    open_to,
)

HUGE = 4_000_000_000
"""Bytes above which data is sent only if the user says that this is meant."""

MOST_FILES = 20_000
"""A folder with more than these is not what was meant."""

PORTION = 512 * 1024 * 1024
"""Bytes that are on their way at once: a node needs room for them beside the files themselves."""

_LARGE = 1024 * 1024
"""Bytes from which a file is not kept in memory until it is sent."""

_CHUNK = 16 * 1024 * 1024  # bytes that are read at once


@dataclass(frozen=True)
class FolderContent:
    """A folder that is ready to be sent.

    Attributes
    ----------
    folder
        Its files, and where to put them.
    read
        The content, by digest, of files that had to be read.
    left
        The paths and sizes of the other files, by digest.
    large
        The paths of files that are sent in parts, and their status when they were read.
    """

    folder: SentFolder
    read: dict[str, memoryview]
    left: dict[str, tuple[str, int]]
    large: Mapping[str, tuple[str, _Mark]] = field(default_factory=dict)

    @cached_property
    def blobs(self) -> dict[str, memoryview]:
        """The content of all files by digest.

        Raises
        ------
        UsageError
            If a file has changed since it was examined.
        """
        return self.read | {key: self._read_left(key) for key in self.left}

    def _read_left(self, key: str) -> memoryview:
        path, size = self.left[key]
        with _reading(path), Path(path).open("rb") as file:
            content = memoryview(file.read(size))  # a log may have grown
        if blobs.digest(content) != key:
            raise _changed(path)
        return content

    @property
    def size(self) -> int:
        """Total bytes of its files."""
        return sum(file["size"] for file in self.folder["files"].values())

    def portions(self, here: Mapping[str, int]) -> Iterator[FolderContent]:
        """Yield the folder in portions of at most `PORTION` bytes.

        Each portion has to be written on the nodes before the next one is sent.

        Parameters
        ----------
        here
            How much of each of its files the nodes have already.

        Raises
        ------
        UsageError
            If a file has changed since it was examined.
        """
        files = dict(self.folder["files"])
        portion: dict[str, memoryview] = {}
        only: list[str] = []
        for path, file in self.folder["files"].items():
            if path in self.large:
                for part, content in self._parts(path, here.get(path, 0)):
                    files[path] = {**file, "part": part}
                    yield self._portion(files, [path], {part["blob"]: content})
                continue
            if path in here:
                continue
            key = file["blob"]
            if only and sum(each.nbytes for each in portion.values()) + file["size"] > PORTION:
                yield self._portion(files, only, portion)
                portion, only = {}, []
            only.append(path)
            if file["size"]:
                portion[key] = self.read[key] if key in self.read else self._read_left(key)
        yield self._portion(files, only, portion, more=False)

    def _parts(self, path: str, here: int) -> Iterator[tuple[FilePart, memoryview]]:
        full, mark = self.large[path]
        size = self.folder["files"][path]["size"]
        for offset in range(0, size, PORTION):
            length = min(PORTION, size - offset)
            if here >= offset + length:
                continue
            with _reading(full):
                with Path(full).open("rb") as file:
                    file.seek(offset)
                    part = memoryview(file.read(length))
                if mark != _mark(os.stat(full)):  # noqa: PTH116
                    raise _changed(full)
            yield {"blob": blobs.digest(part), "size": length, "offset": offset}, part

    def _portion(
        self,
        files: Mapping[str, SentFile],
        only: list[str],
        read: dict[str, memoryview],
        more: bool = True,
    ) -> FolderContent:
        folder: SentFolder = {**self.folder, "files": {**files}, "only": only, "more": more}
        return FolderContent(folder, read, {})


class FolderIndex:
    """The digests of files that were read; like Git's index, it saves reading unchanged files.

    A file is unchanged if its times, size and inode are the same. A file that was modified only
    moments before it was read may change again without changing these, and is read each time until
    it has come to rest.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Mark, str]] = {}

    def find(self, path: str, status: os.stat_result) -> str | None:
        """Return the known digest of a file; ``None`` if it has to be read."""
        mark, key = self._known.get(path, (None, None))
        return key if mark == _mark(status) else None

    def note(self, path: str, status: os.stat_result, key: str) -> None:
        """Record the digest of a file that was read after this status was taken."""
        if max(status.st_mtime_ns, status.st_ctime_ns) < time.time_ns() - _AT_REST:
            self._known[path] = _mark(status), key
        else:
            self._known.pop(path, None)


_Mark = tuple[int, ...]

_AT_REST = 2 * 10**9
"""Nanoseconds: more than the clocks of file systems tell apart, and of servers differ."""


def _mark(status: os.stat_result) -> _Mark:
    place = (status.st_dev, status.st_ino, status.st_size)
    return (*place, status.st_mtime_ns, status.st_ctime_ns)


def read_folder(
    source: Path,
    name: str = "workdir",
    target: str = "",
    limit: float | None = None,
    file_name: str | None = None,
    index: FolderIndex | None = None,
) -> FolderContent:
    """Read the present content of a folder, or of a single file.

    Parameters
    ----------
    source
        The folder or file.
    name
        Distinguishes it from others that are sent to the same place.
    target
        Where to put it on nodes, as in `SentFolder`; a single file is put into that folder.
    limit
        The most bytes that it may have in total.
    file_name
        The name of a single file on nodes; by default, its name here.
    index
        What is known about its files; new knowledge is added.

    Raises
    ------
    UsageError
        If it is too large, or contains something that cannot be read or sent; the message says what
        to do.
    """
    if _real(source) in (Path.home().resolve(), Path(source.anchor)):
        raise UsageError(
            f"{source} is not sent as a whole: go to the folder of the project with `%cd`, or name "
            "it with `--workdir`."
        )
    if not source.is_dir() and not source.is_symlink() and not source.is_file():
        # Reading a pipe would wait for a writer, and a device may have no end.
        raise UsageError(f"{source} is a pipe, socket or device: only files and folders are sent.")
    root = source if source.is_dir() else source.parent
    # A link that is named itself is followed: as a link, it would lead to nothing on a node.
    status = source.stat() if source.is_file() else source.lstat()
    found = dict(entries(source) if source.is_dir() else [(source.name, status)])
    links = {
        path: _target(root / path, root)
        for path, status in found.items()
        if stat.S_ISLNK(status.st_mode)
    }
    empty = [path for path in found if path.endswith("/")]
    no_files = {*links, *empty}
    statuses = {path: status for path, status in found.items() if path not in no_files}
    _check_size(source, {path: status.st_size for path, status in statuses.items()}, limit)
    index = index or FolderIndex()
    modes = FolderModes(root)
    files: dict[str, SentFile] = {}
    read: dict[str, memoryview] = {}
    left: dict[str, tuple[str, int]] = {}
    large: dict[str, tuple[str, _Mark]] = {}
    for path, status in statuses.items():
        full, size = os.path.join(root, path), status.st_size  # noqa: PTH118
        key = index.find(full, status)
        if key is not None:
            if size:
                left[key] = full, size
        else:
            if size < _LARGE:
                content = _read(Path(full))
                key, size = blobs.digest(content), content.nbytes
                if size:
                    read[key] = content
            else:
                with _reading(full):
                    key, size = digest_file(Path(full))
                if size:
                    left[key] = full, size
            index.note(full, status, key)
        if size > PORTION:
            large[file_name or path] = full, _mark(status)
        files[file_name or path] = {
            "blob": key,
            "size": size,
            "mode": open_to(status.st_mode, modes.above(path)),
        }
    folder: SentFolder = {
        "name": name,
        "target": target,
        "files": files,
        "links": links,
        "empty": empty,
    }
    return FolderContent(folder, read, left, large)


def digest_file(path: Path) -> tuple[str, int]:
    """Return the digest and the size of a file.

    It is not mapped: if a program makes it shorter meanwhile, that would end this process.
    """
    digest, size = blobs.Digest(), 0
    buffer = memoryview(bytearray(min(_CHUNK, path.stat().st_size + 1)))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.add(buffer[:count])
            size += count
    return digest.text, size


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise _changed(path) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _read(path: Path) -> memoryview:
    with _reading(str(path)):
        return memoryview(path.read_bytes())


def _changed(path: str) -> UsageError:
    return UsageError(f"{path} is changed while it is sent: run this again.")


def _real(path: Path) -> Path:
    """Return a path without links; `Path.resolve` raises an error for one that leads to itself."""
    return Path(os.path.realpath(path))


def _target(link: Path, root: Path) -> str:
    """Return the target of a symbolic link, relative to the link's folder.

    A link that leads out, to nothing, stays as it is: nothing is missing on the nodes, either.
    """
    real = _real(link)
    if not real.is_relative_to(root.resolve()):
        if not os.path.lexists(real):
            return str(link.readlink())
        raise UsageError(
            f"{link.relative_to(root)} leads out of {root}, to {real}, which is not sent: copy "
            f"what is there, or leave the link out with a line in {IGNORE_FILE}."
        )
    return os.path.relpath(real, link.parent.resolve())


def _check_size(source: Path, sizes: dict[str, int], limit: float | None) -> None:
    if limit is None:
        return
    total = sum(sizes.values())
    if total <= limit and len(sizes) <= MOST_FILES:
        return
    parts: dict[str, list[int]] = {}
    for path, size in sizes.items():
        parts.setdefault(path.partition("/")[0], []).append(size)
    by_size = total > limit
    most = format_bytes(limit) if by_size else f"{MOST_FILES:,} files"
    largest = sorted(parts, key=lambda part: -(sum(parts[part]) if by_size else len(parts[part])))
    shown = [f"{part} ({_extent(parts[part])})" for part in largest[:3]]
    raise UsageError(
        f"{source} has {_extent(list(sizes.values()))}, more than the {most} that are sent by "
        f"themselves, in {format_list(shown)}: leave out what the script does not need with lines "
        f"in {IGNORE_FILE}, or add `--allow-large`."
    )


def _extent(sizes: Sequence[int]) -> str:
    return f"{format_bytes(sum(sizes))} in {format_count(len(sizes), 'file')}"
