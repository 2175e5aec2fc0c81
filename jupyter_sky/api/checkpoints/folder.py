"""The folder of a checkpoint, on a file system or in a bucket, and how saving is atomic.

The files of each save are in a folder of their own below the checkpoint's. A small marker file
names the valid save: it is replaced atomically once all ranks have written their files, and only
then is the previous save removed. So a reader finds one complete checkpoint, or none.

Two runs that save in the same folder by mistake remove each other's saves: one of them is valid,
and the other run is told. On a file system that can lock folders, both do not do so at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.checkpoints.parts import METADATA, Parts, make_reader, newest
from jupyter_sky.api.volumes.mounted import write_entries_back
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks

if TYPE_CHECKING:
    from jupyter_sky.api.checkpoints.together import CheckpointGroup

_MARKER = "checkpoint.json"
_BEGUN = "begun"
_JOINED = "joined"  # where it is not rank 0 that has begun it
_BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"}
_PARTS = ".distcp"
_SAVE = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class CheckpointFolder:
    """The folder of a checkpoint, in which one save is written or read.

    Attributes
    ----------
    path
        As the user gave it.
    names
        The kind of each value, by name: ``"sharded"``, ``"state"`` or ``"value"``.
    is_first
        Whether this is rank 0, which acts for all ranks.
    is_own
        Whether it is on another disk than rank 0's.
    parts, together
        Which ranks can see which of its files, and the ranks, if not all of them see all files.
    """

    path: str
    names: Mapping[str, str]
    _place: _Place
    _save: str
    is_first: bool
    is_own: bool = False
    parts: Parts | None = None
    together: CheckpointGroup | None = None

    @classmethod
    def begin(
        cls, path: str, names: Mapping[str, str], together: CheckpointGroup
    ) -> CheckpointFolder:
        """Prepare a new save, for all ranks at once.

        Raises
        ------
        UsageError
            If that fails, or not every rank can see it.
        """
        made = None
        if together.is_first:
            made = _attempt(path, lambda place: place.new_save())
        trouble, save = together.tell(made)[0]
        if trouble:
            raise UsageError(f"nothing can be saved at {path}: {trouble}.")
        _, is_seen = _attempt(path, lambda place: place.exists(f"{save}/{_BEGUN}"))
        trouble = ""
        if not is_seen:
            # This disk is not rank 0's: it gets a folder of its own.
            trouble, _ = _attempt(path, lambda place: place.join_save(save))
        troubles = together.tell(trouble)
        if failed := [rank for rank, said in enumerate(troubles) if said]:
            if together.is_first:
                _Place.of(path).remove(save)
            where = format_ranks(failed)
            raise UsageError(f"nothing can be saved at {path} on {where}: {troubles[failed[0]]}.")
        return cls(path, names, _Place.of(path), save, together.is_first, is_own=not is_seen)

    @classmethod
    def open(cls, path: str, together: CheckpointGroup) -> CheckpointFolder:
        """Find the valid save, for all ranks at once.

        Raises
        ------
        UsageError
            If there is none, or not every rank can see it.
        """
        answers = together.tell(_attempt(path, lambda place: place.read_marker()))
        marker = newest([found for _, found in answers])
        if marker is None:
            trouble = answers[0][0]
            raise UsageError(f"there is no checkpoint at {path}{trouble and f' ({trouble})'}.")
        place, save = _Place.of(path), marker["save"]
        made = cls(path, marker["names"], place, save, together.is_first)
        _, files = _attempt(path, lambda place: place.files(save))
        seen = [set(names or ()) for names in together.tell(files)]
        if all(names == seen[0] and METADATA in names for names in seen):
            return made
        having = next((rank for rank, names in enumerate(seen) if METADATA in names), None)
        told = None
        if together.rank == having:
            _, told = _attempt(path, lambda place: place.read(f"{save}/{METADATA}"))
        metadata = next(filter(None, together.tell(told)), None)
        if metadata is None:
            raise UsageError(
                f"the checkpoint {path} is not whole: the node that rank 0 was on when it was "
                "saved is not in this cluster, or its files were removed."
            )
        parts = Parts(place.url(save), metadata, seen)
        parts.check(path)
        return replace(made, parts=parts, together=together)

    def writer(self) -> Any:
        """Return torch's writer for this save, which makes it valid once everything is written."""
        from torch.distributed.checkpoint import FileSystemWriter

        if not self._place.is_local:
            from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        # `finish` is called on the first rank; torch passes its errors on to all ranks.
        kind: Any = FileSystemWriter if self._place.is_local else FsspecWriter
        place, save, put_in_force = self._place, self._save, self._put_in_force

        class Writer(kind):  # type: ignore[misc]
            def write_data(self, *args: Any, **kwargs: Any) -> Any:
                # Before rank 0 is told: nothing may be valid that others have yet to upload.
                written = super().write_data(*args, **kwargs)
                parts = {each.storage_data.relative_path for each in written.wait()}
                place.write_back([f"{save}/{part}" for part in parts])
                return written

            def finish(self, *args: Any, **kwargs: Any) -> None:
                super().finish(*args, **kwargs)
                place.write_back([save, _MARKER, *put_in_force()])

        return Writer(self._place.url(self._save))

    def reader(self) -> Any:
        """Return torch's reader for this save."""
        if self.parts and self.together:
            return make_reader(self.parts, self.together)
        from torch.distributed.checkpoint import FileSystemReader

        if self._place.is_local:
            return FileSystemReader(self._place.url(self._save))
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(self._place.url(self._save))

    def _put_in_force(self) -> list[str]:
        """Make this save the valid one; return previous ones, which are removed."""
        removed = []
        marker = {"save": self._save, "names": dict(self.names), "time": time.time()}
        with self._place.locked():
            if not {_BEGUN, METADATA} <= {*self._place.files(self._save)}:
                raise FileNotFoundError(self._save)
            self._place.write_marker(marker)
            for other in self._place.saves():
                # Where nothing is locked, a save of another run may have become valid meanwhile.
                now = self._place.read_marker()
                if other != self._save and now and now["save"] == self._save:
                    self._place.remove(other)
                    removed.append(other)
        return removed

    def reason(self, error: BaseException) -> BaseException:
        """Return why this save has failed with an error: another run may have removed it."""
        with suppress(Exception):  # drivers of buckets raise all kinds of errors
            marker = self._place.read_marker()
            is_begun = self._place.exists(f"{self._save}/{_BEGUN}")
            if marker and marker["save"] != self._save and not is_begun:
                return UsageError(
                    "another run has saved in the same folder meanwhile, and its checkpoint is "
                    "there: give each run a folder of its own"
                )
        return error

    def settle(self) -> None:
        """Remove previous saves from this disk, unless it is rank 0's, which does so itself."""
        if not self.is_own:
            return
        with suppress(Exception):  # drivers of buckets raise all kinds of errors
            others = [each for each in self._place.saves() if each != self._save]
            for other in others:
                self._place.remove(other)
            self._place.write_back(others)

    def discard(self) -> None:
        """Remove the files of a failed save; rank 0 does so for all.

        On other disks they stay until the next save: only rank 0 knows whether it became valid.
        """
        with suppress(Exception):  # drivers of buckets raise all kinds of errors
            if not self.is_first:
                return
            marker = self._place.read_marker()
            if marker is None or marker["save"] != self._save:
                self._place.remove(self._save)


def _attempt(path: str, action: Any) -> tuple[str, Any]:
    """Return why an operation at a place failed, and its result."""
    try:
        return "", action(_Place.of(path))
    except Exception as error:  # drivers of buckets raise all kinds of errors
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."), None


class _Place:
    """A folder, through fsspec."""

    def __init__(self, path: str, files: Any, root: str, is_local: bool) -> None:
        self._path = path
        self._files = files
        self._root = root
        self.is_local = is_local

    @classmethod
    def of(cls, path: str) -> _Place:
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        try:
            files, root = url_to_fs(path if "://" in path else str(Path(path).expanduser()))
        except ImportError as error:
            raise UsageError(f"{error} on every node: --pip installs it") from None
        return cls(path.rstrip("/"), files, root.rstrip("/"), isinstance(files, LocalFileSystem))

    def url(self, name: str) -> str:
        """Return the path of an entry, for torch's readers and writers."""
        return f"{self._root if self.is_local else self._path}/{name}"

    def new_save(self) -> str:
        save = uuid.uuid4().hex[:12]
        protocols = self._files.protocol
        if _BUCKETS.isdisjoint([protocols] if isinstance(protocols, str) else protocols):
            # Buckets have no folders, and drivers would create a bucket with a mistyped name.
            self._files.makedirs(f"{self._root}/{save}", exist_ok=True)
        self._files.pipe_file(f"{self._root}/{save}/{_BEGUN}", b"-")
        return save

    def join_save(self, save: str) -> None:
        if not self.is_local:
            raise UsageError("it does not see what rank 0 has written there")
        folder = Path(self._root, save)
        folder.mkdir(parents=True, exist_ok=True)
        # If nothing else is written, the next save knows by it that this may be removed.
        (folder / _JOINED).touch()

    def files(self, save: str) -> list[str]:
        self._files.invalidate_cache()
        names = self._files.ls(f"{self._root}/{save}", detail=False)
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in names)

    def read(self, name: str) -> bytes:
        data: bytes = self._files.cat_file(f"{self._root}/{name}")
        return data

    def exists(self, name: str) -> bool:
        self._files.invalidate_cache()
        return bool(self._files.exists(f"{self._root}/{name}"))

    def read_marker(self) -> dict[str, Any] | None:
        self._files.invalidate_cache()
        try:
            found: Any = json.loads(self._files.cat_file(f"{self._root}/{_MARKER}"))
        except FileNotFoundError:
            return None
        is_ours = isinstance(found, dict) and {"save", "names"} <= found.keys()
        return found if is_ours else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from putting a save in force, if the file system can do that."""
        if not self.is_local:
            yield
            return
        folder = os.open(self._root, os.O_RDONLY)
        try:
            with suppress(OSError):  # such as some that are mounted from another machine
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def write_marker(self, marker: Mapping[str, Any]) -> None:
        data, path = json.dumps(marker).encode(), f"{self._root}/{_MARKER}"
        if not self.is_local:
            self._files.pipe_file(path, data)  # a bucket shows an object only once it is complete
            return
        part = Path(f"{path}.{marker['save']}.part")
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def write_back(self, names: Collection[str]) -> None:
        """If this is in a volume, write what became of these entries back to its bucket."""
        if names and self.is_local:
            write_entries_back(self._root, names)

    def saves(self) -> list[str]:
        self._files.invalidate_cache()
        names = [
            str(each).rstrip("/").rpartition("/")[2]
            for each in self._files.ls(self._root, detail=False)
        ]
        return [name for name in names if _SAVE.fullmatch(name) and self._is_save(name)]

    def _is_save(self, name: str) -> bool:
        """Return whether a folder is a save, rather than one of the user's, such as a date."""
        with suppress(FileNotFoundError, NotADirectoryError):  # another run may have removed it
            files = self.files(name)
            marks = (_BEGUN, _JOINED, METADATA)
            return any(each in marks or each.endswith(_PARTS) for each in files)
        return False

    def remove(self, save: str) -> None:
        if self.is_local:
            shutil.rmtree(f"{self._root}/{save}", ignore_errors=True)
        else:
            self._files.rm(f"{self._root}/{save}", recursive=True)
