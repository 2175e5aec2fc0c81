"""The folder of a volume on a node: created where nothing exists, removed with our own files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from jupyter_sky.formatting import format_bytes, format_list
from jupyter_sky.node.volumes.entry import is_in_the_bucket
from jupyter_sky.node.volumes.walking import links_of
from jupyter_sky.transport.volumes.asking import ABSENT, NEW, note_places

_NAMED = 3  # most files to name in a sentence
_SPARE = 256  # descriptors reserved for other things than leases
_LONGEST_NAME = 255  # bytes
_MODULE = b"jupyter_sky.node.volumes"
_ANYBODY_WRITES = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class VolumeError(Exception):
    """A volume cannot be provided; the message says why."""


class HeldFolder:
    """The folder of a volume, held open so that it is told from another one at its path.

    Parameters
    ----------
    path
        Its path.
    made
        The folders that were created for it, innermost first.
    """

    def __init__(self, path: Path, made: Sequence[Path]) -> None:
        self.made = made
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_there(self) -> bool:
        """Return whether the folder is still at its path."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def release(self) -> None:
        """Hold it no longer."""
        os.close(self._descriptor)


def make_place(path: Path, note: Mapping[str, Any]) -> tuple[HeldFolder, str]:
    """Create the folder of a volume, and write the note that describes it.

    Returns
    -------
    HeldFolder
        The folder.
    str
        A sentence for the user about what was there before; usually empty.

    Raises
    ------
    VolumeError
        If it cannot be created, or something else is there.
    """
    made: list[Path] = []
    known = ""
    try:
        # Where others can write, they could write a note, too, on files that are not of a volume.
        former = [each for each in note_places(path) if _is_own(each)]
        for each in former:
            _refuse_if_kept(path, each)
        if path.is_dir() and any(path.iterdir()):
            if not former:
                for each in note_places(path):  # another node may just have made it
                    _refuse_if_kept(path, each)
                raise VolumeError(f"{path} is not empty: choose a path that is not there yet")
            if left := _clear(path, any(map(_is_read_only, former))):
                known = _set_aside(path, left)
            _remove_notes(path)
            _remove_empty_folders(path)
        for each in former:
            each.unlink(missing_ok=True)
        for each in (path, *path.parents):
            if each.exists():
                break
            made.append(each)
        if path.exists() and not path.is_dir():
            raise FileExistsError
        if path.exists():
            _check_may_use(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # First: only who is not refused makes the folder, and so removes it.
        written = _write_note(path, json.dumps({**note, "host": os.uname().nodename}))
        try:
            path.mkdir(exist_ok=True)
            return HeldFolder(path, made), known
        except OSError:
            written.unlink(missing_ok=True)
            raise
    except (FileExistsError, NotADirectoryError):
        raise VolumeError(f"there is a file at {path}: choose another path") from None
    except OSError as error:
        _remove_made(made)
        raise VolumeError(
            f"{path} cannot be made ({error.strerror}): choose a path that you may write on "
            "the node, like ~/data"
        ) from None


def remove_place(path: Path, kept: Collection[Path], folder: HeldFolder) -> None:
    """Remove our own files, empty folders, and the folder itself if we have created it.

    Neither files in `kept` nor any others are touched; links within it are, if none are kept. With
    files that are kept the note stays, so that the next volume here sets them aside.
    """
    for link in () if kept else map(path.joinpath, links_of(path)):
        # It would dangle, and be in the way of the next volume here.
        if Path(os.path.realpath(link)).is_relative_to(os.path.realpath(path)):
            link.unlink()
    _remove_empty_folders(path)
    if not kept:
        _remove_notes(path)
        _remove_made(folder.made)
    folder.release()


def _remove_made(made: Sequence[Path]) -> None:
    """Remove folders that were created for a volume, innermost first, unless others use them."""
    for each in made:
        with contextlib.suppress(OSError):
            each.rmdir()


def _check_may_use(path: Path) -> None:
    """Refuse a folder that was there before if its owner could exchange the files of the volume.

    Raises
    ------
    VolumeError
        If it belongs to another user than the administrator.
    PermissionError
        If this user may not write in it.
    """
    if path.stat().st_uid not in (os.geteuid(), 0):
        raise VolumeError(
            f"{path} belongs to another user, who could change what is in it: choose a path that "
            "is not there yet"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_own(note: Path) -> bool:
    """Return whether this user has written a note."""
    try:
        return note.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _write_note(path: Path, text: str) -> Path:
    beside, inside = note_places(path)
    # Other nodes, or other clusters, may make a volume there at this moment.
    for note in (beside, inside):
        new = note.with_name(f".{os.uname().nodename}-{os.getpid()}{NEW}")
        try:
            if note == inside:
                path.mkdir(exist_ok=True)
            new.write_text(text)
            note.hardlink_to(new)
            return note
        except FileExistsError:
            _refuse_if_kept(path, note)
            raise VolumeError(f"{path} is made by another cluster: choose another path") from None
        except OSError:
            if note == inside:
                raise
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
    raise AssertionError("unreachable")


def _refuse_if_kept(path: Path, note: Path) -> None:
    """Refuse the folder of a volume whose process is still running, or may be."""
    host = os.uname().nodename
    try:
        said = json.loads(note.read_text())
        pid, there = said["pid"], said.get("host", host)
        if there == host and _MODULE not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
    except (OSError, ValueError, KeyError):
        return
    if there == host:
        raise VolumeError(f"{path} is a volume of another cluster: choose another path")
    raise VolumeError(
        f"{path} is a volume of {there}, with which this node shares the disk: choose a path on a "
        f"disk of each node's own, like /tmp/data, or remove {note} if that has ended"
    )


def _is_read_only(note: Path) -> bool:
    """Return whether a volume was read-only."""
    try:
        return bool(json.loads(note.read_text())["read_only"])
    except (OSError, ValueError, KeyError):
        return False


def remove_absent(path: Path) -> None:
    """Remove the files of a volume that have no content."""
    for folder, _, names in os.walk(path):
        for name in names:
            place = Path(folder, name)
            with contextlib.suppress(OSError):
                if place.lstat().st_mode & ABSENT:
                    place.unlink()


def _clear(path: Path, is_read_only: bool) -> list[Path]:
    """Remove what a killed process has left, except files that may exist nowhere else.

    In the bucket are: files without content, unchanged files that were fetched or written back, and
    files of a read-only volume that nobody may write.
    """
    left = []
    remove_absent(path)
    for folder, _, names in os.walk(path):
        for name in names:
            place = Path(folder, name)
            is_as_listed = is_read_only and not place.lstat().st_mode & _ANYBODY_WRITES
            is_there = is_as_listed or is_in_the_bucket(place, str(place.relative_to(path)))
            if name.endswith(NEW) or is_there:
                place.unlink()
            elif place not in note_places(path):
                left.append(place)
    return sorted(left)


def _set_aside(path: Path, left: Sequence[Path]) -> str:
    """Move files out of a volume's folder into one beside it; return a sentence about that.

    They are not written back: the bucket may have newer ones, and a killed process may have left
    incomplete files.
    """
    numbered = (path.with_name(f"{path.name}.left-{number}") for number in itertools.count(1))
    aside = next(each for each in numbered if not each.exists())
    try:
        for place in left:
            target = aside / place.relative_to(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            place.rename(target)
    except OSError:
        raise VolumeError(
            f"{path} has {place} of a volume whose node ended before it was written back: move it "
            "to another folder"
        ) from None
    names = [str(each.relative_to(path)) for each in left[:_NAMED]]
    more = [f"{len(left) - _NAMED} more"] if len(left) > _NAMED else []
    return (
        f"what a volume at {path} had not written back when it ended is in {aside} now: "
        f"{format_list([*names, *more])}"
    )


def is_place(name: str) -> bool:
    """Return whether a disk can have a file of this name, from its folder."""
    parts = PurePosixPath(name).parts
    return ".." not in parts and all(len(os.fsencode(part)) <= _LONGEST_NAME for part in parts)


def _remove_notes(path: Path) -> None:
    for note in note_places(path):
        with contextlib.suppress(OSError):
            note.unlink()


def _remove_empty_folders(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        if Path(folder) != path:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def check_size(size: int, limit: int, path: Path, url: str) -> None:
    """Refuse to fetch all files at once if they take up more bytes than the limit.

    Raises
    ------
    VolumeError
        If they do.
    """
    if size > limit:
        raise VolumeError(
            f"{path} is on a file system without leases, so that all of {url} has to be fetched "
            f"at once: its {format_bytes(size)} are more than the {format_bytes(limit)} of the "
            "setting volume_cache"
        )


def check_descriptors(files: int, url: str) -> None:
    """Refuse more files than a process can hold open, as each is until it is fetched.

    Raises
    ------
    VolumeError
        If there are more.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and files + _SPARE > most:
        raise VolumeError(
            f"{url} has {files:,} files, and a process of this node can hold {most:,} open: "
            "name a longer prefix, or pack the files, as in tar files"
        )
