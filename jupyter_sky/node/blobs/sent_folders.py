"""Writes folders of the notebook's computer on a node, file by file.

What is wanted: the node has the files as they are at the notebook, and files that the user's code
writes beside them stay, even from one run to the next. What the code writes *over* them must not be
lost, either.

The solution: a record says what was sent last. A file that has not changed at its
source since is left as it is, whatever has happened to it here. A file that has changed at its
source replaces what was sent, and is refused if it was changed here as well. Each file is written
under another name and renamed, so that none is ever incomplete. One process at a time does this,
and a record that is older than the files, because writing was interrupted, does no harm.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.folders import digest_file
from jupyter_sky.transport.blobs.sent_folders import (
    LOCK_NAME,
    FilePart,
    SentFile,
    SentFolder,
    mode_of_copy,
    mode_of_new,
    record_path,
    short_name,
    unfinished_name,
)

_COPIED = 2**20  # bytes at once
_ARROW = "-> "  # no digest begins like this
_FOLDER = "/"


def write_folder(folder: SentFolder, begun_in: Path, store: Path) -> Path:
    """Make a folder on this node equal to its source.

    Parameters
    ----------
    folder
        The folder.
    begun_in
        The folder that ranks start in.
    store
        The folder of this node's blobs.

    Returns
    -------
    Path
        Its path.

    Raises
    ------
    SkyError
        If a file that was not sent is in the way.
    """
    root = begun_in / Path(folder["target"]).expanduser()
    record = begun_in / Path(record_path(folder)).expanduser()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root, record.with_name(LOCK_NAME)):
            _FolderWriter(root, record, store).carry_out(folder)
    except OSError as error:
        place = _folder_of(error, root)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SkyError(f"no room is left for {place} on this node: free some there.") from None
        why = error.strerror or error
        raise SkyError(f"{place} cannot be written on this node: {why}.") from None
    return root


def _folder_of(error: OSError, root: Path) -> Path:
    """Return the folder of a file that could not be written: files have other names until then."""
    place = Path(os.fsdecode(error.filename2 or error.filename or root))
    return place.parent if root in place.parents else root


@contextlib.contextmanager
def _locked(root: Path, lock: Path) -> Iterator[None]:
    """Keep other processes, perhaps of nodes that share a folder, from writing it meanwhile.

    On NFS, other nodes see the lock of a file, and not that of a folder. Other users may not open
    the file, and see the lock of the folder.
    """
    descriptors = [os.open(root, os.O_RDONLY | os.O_CLOEXEC)]
    with contextlib.suppress(OSError):  # such as one of another user, or a full disk
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptors.append(os.open(lock, flags, 0o600))
    try:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass(frozen=True)
class _Entry:
    """A file as it was last sent: its digest, and its status in the file system then.

    For a symbolic link, the digest is an arrow followed by its target, and for a folder that was
    empty, a slash.
    """

    blob: str
    changed: int
    size: int


class _FolderWriter:
    """Writes one folder.

    Parameters
    ----------
    root
        Its path on this node.
    record
        The file that records what was sent last.
    store
        The folder of blobs.
    """

    def __init__(self, root: Path, record: Path, store: Path) -> None:
        self._root = root
        self._real = root.resolve()
        self._record = record
        self._store = store
        self._is_put = self._force = False
        self._inside: set[Path] = set()  # folders known not to lead outside

    def carry_out(self, folder: SentFolder) -> None:
        """Write what is new, and remove what was removed at the source."""
        self._is_put, self._force = "force" in folder, folder.get("force", False)
        links = {path: _Entry(_ARROW + target, 0, 0) for path, target in folder["links"].items()}
        empty = {path.rstrip("/"): _Entry(_FOLDER, 0, 0) for path in folder["empty"]}
        recorded = self._read_record()
        before = {**recorded}
        # Remove first: a folder may now be where a file was, or the other way round.
        for path, entry in recorded.items():
            kind = links if entry.blob.startswith(_ARROW) else folder["files"]
            if path not in (empty if entry.blob == _FOLDER else kind):
                self._remove(path, before.pop(path))
        after = {**before} if "only" in folder else {}
        for path in folder.get("only", folder["files"]):
            if written := self._write_file(path, folder["files"][path], before.get(path)):
                after[path] = written
        if folder.get("more"):
            self._write_record(after)
            return
        for path, target in folder["links"].items():
            self._write_link(path, target)
        for path in empty:
            self._make_empty(path)
        if (after := after | links | empty) != recorded:
            self._write_record(after)

    def _write_file(self, path: str, file: SentFile, sent: _Entry | None) -> _Entry | None:
        """Write a file; return its entry, or ``None`` if parts of it are still to come."""
        place = self._place(path)
        here = _status(place)
        if here is not None and sent is not None:
            is_as_sent = (here.st_mtime_ns, here.st_size) == (sent.changed, sent.size)
            # What was changed here stays, unless it is to be replaced.
            if file["blob"] == sent.blob and (is_as_sent or not self._force):
                if stat.S_ISREG(here.st_mode):
                    place.chmod(mode_of_copy(stat.S_IMODE(here.st_mode), file["mode"]))
                return sent
        else:
            is_as_sent = here is None
        is_refused = not is_as_sent and not self._force
        # Reading a large file takes long, so it is not done for each of its parts.
        is_first = "part" not in file or file["part"]["offset"] == 0
        if is_refused and not (is_first and self._has_content(place, file)):
            self._refuse(path, was_sent=sent is not None)
        self._make_folder_of(path)
        if "part" in file:
            return _entry(place, file) if is_refused else self._append(place, file, file["part"])
        return self._replace(place, file)

    def _append(self, place: Path, file: SentFile, part: FilePart) -> _Entry | None:
        """Append a part to an unfinished file; the last one completes it."""
        unfinished = place.with_name(unfinished_name(place.name, file))
        for other in place.parent.glob(f".{glob.escape(short_name(place.name))}.{'?' * 16}.part"):
            if other != unfinished:  # a leftover from an interrupted sending
                other.unlink(missing_ok=True)
        unfinished.touch(mode_of_new(file["mode"]))
        end = part["offset"] + part["size"]
        with unfinished.open("r+b") as to:
            if (here := to.seek(0, os.SEEK_END)) < part["offset"]:
                raise SkyError(f"of {place} a part is missing on this node: send it again.")
            if here < end:
                to.seek(part["offset"])
                to.truncate()
                with (self._store / blobs.file_name(part["blob"])).open("rb") as blob:
                    shutil.copyfileobj(blob, to, _COPIED)
        if end < file["size"]:
            return None
        try:
            unfinished.replace(place)
        except FileNotFoundError:  # another node has just done so
            if not self._has_content(place, file):
                raise
        return _entry(place, file)

    def _replace(self, place: Path, file: SentFile) -> _Entry:
        part = _part_of(place)
        part.unlink(missing_ok=True)
        try:
            part.touch(mode_of_new(file["mode"]))
            if file["size"]:
                shutil.copyfile(self._store / blobs.file_name(file["blob"]), part)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
        return _entry(place, file)

    def _write_link(self, path: str, target: str) -> None:
        place = self._place(path)
        if place.is_symlink() and str(place.readlink()) == target:
            return
        if _status(place) is not None and not place.is_symlink():
            self._refuse(path, was_sent=False)
        self._make_folder_of(path)
        part = _part_of(place)
        part.unlink(missing_ok=True)
        part.symlink_to(target)
        part.replace(place)

    def _make_empty(self, path: str) -> None:
        place = self._place(path)
        self._make_folder_of(path)
        if _status(place) is None:
            place.mkdir(exist_ok=True)
        elif not place.is_dir():
            self._refuse(path, was_sent=False)

    def _remove(self, path: str, sent: _Entry) -> None:
        place = self._place(path)
        here = _status(place)
        if here is None:
            return
        is_folder = sent.blob == _FOLDER
        if is_folder:
            is_as_sent = stat.S_ISDIR(here.st_mode)
        elif stat.S_ISLNK(here.st_mode):
            is_as_sent = _ARROW + str(place.readlink()) == sent.blob
        else:
            is_as_sent = (here.st_mtime_ns, here.st_size) == (sent.changed, sent.size)
        if not is_as_sent:
            return
        emptied = list(place.parents)
        if is_folder:
            emptied.insert(0, place)
        else:
            place.unlink(missing_ok=True)
        for folder in emptied:
            if folder == self._root:
                break
            try:
                folder.rmdir()
            except OSError:  # something else is in it
                break

    def _place(self, path: str) -> Path:
        parts = PurePosixPath(path)
        place = self._root / parts
        if parts.is_absolute() or ".." in parts.parts:
            raise SkyError(f"{path} is not a path in a folder.")
        if place.parent not in self._inside:
            if not place.parent.resolve().is_relative_to(self._real):
                raise SkyError(f"{place.parent} leads out of {self._root} on this node: remove it.")
            self._inside.add(place.parent)
        return place

    def _make_folder_of(self, path: str) -> None:
        """Make the folder for a file; refuse if something of the node's own is in its place."""
        try:
            (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            above = [str(each) for each in PurePosixPath(path).parents]
            self._refuse(next(each for each in above if _status(self._root / each)), False)

    def _has_content(self, place: Path, file: SentFile) -> bool:
        if not place.is_file() or place.stat().st_size != file["size"]:
            return False
        return not file["size"] or digest_file(place)[0] == file["blob"]

    def _refuse(self, path: str, was_sent: bool) -> None:
        what = "was changed on this node since it was sent" if was_sent else "is on this node"
        # In a folder that the user has named, it has another name here.
        line = "the same line with `--force`" if self._is_put else f"`%sky put --force {path}`"
        raise SkyError(
            f"{path} is to be sent, but {what}: keep it from being sent with a line in .skyignore, "
            f"or remove {self._root / path} there; {line} replaces it."
        )

    def _read_record(self) -> dict[str, _Entry]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            said: Mapping[str, Any] = json.loads(self._record.read_text())
            return {path: _Entry(*entry) for path, entry in said.items()}
        return {}

    def _write_record(self, entries: Mapping[str, _Entry]) -> None:
        part = self._record.with_suffix(f".{_own_suffix()}")
        said = {path: [each.blob, each.changed, each.size] for path, each in entries.items()}
        part.write_text(json.dumps(said))
        part.replace(self._record)


def _part_of(place: Path) -> Path:
    """Return the path under which this process writes a file before it is renamed."""
    return place.with_name(f".{short_name(place.name)}.{_own_suffix()}")


def _own_suffix() -> str:
    return f"{os.uname().nodename}-{os.getpid()}.part"  # other nodes have other processes


def _entry(place: Path, file: SentFile) -> _Entry:
    status = place.stat()
    return _Entry(file["blob"], status.st_mtime_ns, status.st_size)


def _status(place: Path) -> os.stat_result | None:
    try:
        return place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
