"""The place of a checkpoint: a folder on a file system or in a bucket, through fsspec."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_sky.api.checkpoints.parts import METADATA
from jupyter_sky.api.volumes.mounted import NotUploaded, is_in_volume, write_entries_back
from jupyter_sky.errors import UsageError
from jupyter_sky.transport.volumes.requests import MARKER

BEGUN = "begun"
_JOINED = "joined"  # where it is not rank 0 that has begun it
_BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"}
_PARTS = ".distcp"
_SAVE = re.compile(r"[0-9a-f]{12}")


class CheckpointPlace:
    """A folder, through fsspec."""

    def __init__(self, path: str, files: Any, root: str, is_local: bool) -> None:
        self._path = path
        self._files = files
        self._root = root
        self.is_local = is_local

    @classmethod
    def of(cls, path: str) -> CheckpointPlace:
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
        self._files.pipe_file(f"{self._root}/{save}/{BEGUN}", b"-")
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
            found: Any = json.loads(self._files.cat_file(f"{self._root}/{MARKER}"))
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
        import fcntl  # which Windows lacks, where a notebook may be

        folder = os.open(self._root, os.O_RDONLY)
        try:
            with suppress(OSError):  # such as some that are mounted from another machine
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def write_marker(self, marker: Mapping[str, Any]) -> None:
        data, path = json.dumps(marker).encode(), f"{self._root}/{MARKER}"
        if not self.is_local:
            self._files.pipe_file(path, data)  # a bucket shows an object only once it is complete
            return
        part = Path(f"{path}.{marker['save']}.part")
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def is_in_volume(self) -> bool:
        return self.is_local and is_in_volume(self._root)

    def write_back(self, names: Collection[str], gone: Collection[str] = ()) -> None:
        """If this is in a volume, write what became of these entries back to its bucket."""
        if self.is_local:
            write_entries_back(self._root, names, gone)

    def is_written_back(self, save: str) -> bool:
        """Return whether the bucket has a save that is in force, if this is in a volume."""
        with suppress(NotUploaded):
            self.write_back([save, MARKER])
            return True
        return False

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
            marks = (BEGUN, _JOINED, METADATA)
            return any(each in marks or each.endswith(_PARTS) for each in files)
        return False

    def remove(self, save: str) -> None:
        if self.is_local:
            shutil.rmtree(f"{self._root}/{save}", ignore_errors=True)
        else:
            self._files.rm(f"{self._root}/{save}", recursive=True)
