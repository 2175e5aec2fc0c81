"""The folder of a checkpoint, on a file system or in a bucket, and how saving is atomic.

The files of each save are in a folder of their own below the checkpoint's. A small marker file
names the valid save: it is replaced atomically once all ranks have written their files, and only
then is the previous save removed. So a reader finds one complete checkpoint, or none.

In a volume, the previous save also stays until the bucket has the new one. Otherwise a node that is
lost while the bucket is out of reach would take both with it.

Two runs that save in the same folder by mistake remove each other's saves: one of them is valid,
and the other run is told. On a file system that can lock folders, both do not do so at once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.checkpoints.parts import METADATA, Parts, make_reader, newest
from jupyter_sky.api.checkpoints.place import BEGUN, CheckpointPlace
from jupyter_sky.api.volumes.mounted import NotUploaded
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport import present_run
from jupyter_sky.transport.volumes.requests import MARKER

if TYPE_CHECKING:
    from jupyter_sky.api.checkpoints.together import CheckpointGroup

_OLDER = (
    "{path}: parts of the last checkpoint were lost before its bucket had them, and the one before "
    "it is loaded."
)


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
    is_uploaded
        Whether it is in a volume of some node.
    together
        The ranks.
    parts
        Which ranks can see which of its files, if not all of them see all files.
    """

    path: str
    names: Mapping[str, str]
    _place: CheckpointPlace
    _save: str
    is_first: bool
    together: CheckpointGroup
    is_own: bool = False
    is_uploaded: bool = False
    parts: Parts | None = None
    _left: list[str] = field(default_factory=list)
    """Why the bucket lacks what this rank has written."""
    _kept: list[str] = field(default_factory=list)
    """The saves that stay, on rank 0."""

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
        _, is_seen = _attempt(path, lambda place: place.exists(f"{save}/{BEGUN}"))
        trouble = ""
        if not is_seen:
            # This disk is not rank 0's: it gets a folder of its own.
            trouble, _ = _attempt(path, lambda place: place.join_save(save))
        _, is_in_volume = _attempt(path, lambda place: place.is_in_volume())
        told = together.tell((trouble, bool(is_in_volume)))
        troubles = [said for said, _ in told]
        if failed := [rank for rank, said in enumerate(troubles) if said]:
            if together.is_first:
                CheckpointPlace.of(path).remove(save)
            where = format_ranks(failed)
            raise UsageError(f"nothing can be saved at {path} on {where}: {troubles[failed[0]]}.")
        return cls(
            path,
            names,
            CheckpointPlace.of(path),
            save,
            together.is_first,
            together,
            is_own=not is_seen,
            is_uploaded=any(is_there for _, is_there in told),
        )

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
        try:
            return cls._opened(path, marker, together)
        except UsageError:
            if before := marker.get("before"):
                with suppress(UsageError):
                    made = cls._opened(path, before, together)
                    if together.is_first:
                        warnings.warn(_OLDER.format(path=path), stacklevel=3)
                    return made
            raise

    @classmethod
    def _opened(
        cls, path: str, marker: Mapping[str, Any], together: CheckpointGroup
    ) -> CheckpointFolder:
        """Return the save that a marker names, if all its parts are there."""
        place, save = CheckpointPlace.of(path), marker["save"]
        made = cls(path, marker["names"], place, save, together.is_first, together)
        _, files = _attempt(path, lambda place: place.files(save))
        seen = [set(names or ()) for names in together.tell(files)]
        needed = {METADATA, *marker.get("parts", ())}
        if all(names == seen[0] and needed <= names for names in seen):
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
        return replace(made, parts=parts)

    def writer(self) -> Any:
        """Return torch's writer for this save, which makes it valid once everything is written."""
        from torch.distributed.checkpoint import FileSystemWriter

        if not self._place.is_local:
            from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        # `finish` is called on the first rank; torch passes its errors on to all ranks.
        kind: Any = FileSystemWriter if self._place.is_local else FsspecWriter
        write_back, put_in_force = self._write_back, self._put_in_force

        class Writer(kind):  # type: ignore[misc]
            def write_data(self, *args: Any, **kwargs: Any) -> Any:
                # Before rank 0 is told: nothing may be valid that others have yet to upload.
                written = super().write_data(*args, **kwargs)
                write_back(_names_of(written.wait()))
                return written

            def finish(self, metadata: Any, results: Sequence[Sequence[Any]]) -> None:
                super().finish(metadata, results)
                put_in_force([name for each in results for name in _names_of(each)])

        return Writer(self._place.url(self._save))

    def reader(self) -> Any:
        """Return torch's reader for this save."""
        if self.parts:
            return make_reader(self.parts, self.together)
        from torch.distributed.checkpoint import FileSystemReader

        if self._place.is_local:
            return FileSystemReader(self._place.url(self._save))
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        return FsspecReader(self._place.url(self._save))

    def _write_back(self, parts: Collection[str]) -> None:
        """Write parts of this save back, if it is in a volume; note why that fails."""
        with self._noting():
            self._place.write_back([f"{self._save}/{part}" for part in parts])

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except NotUploaded as error:  # it is complete here: the next write-back takes the rest
            self._left.append(str(error).rstrip("."))

    def _put_in_force(self, parts: Collection[str]) -> None:
        """Make this save the valid one, and remove previous ones unless the bucket needs them."""
        before = None
        try:
            before = self._place.read_marker()
            if before and not self._place.is_written_back(before["save"]):
                before = before.get("before")
        except Exception:  # of any kind: what is there may be out of reach, or of another program
            self._kept.extend(self._place.saves())
        marker = {
            "save": self._save,
            "names": dict(self.names),
            "time": time.time(),
            # Nobody takes it for whole, nor uploads the marker, before all of these are there.
            "parts": sorted({*parts}),
            "before": {key: value for key, value in (before or {}).items() if key != "before"},
        }
        with self._place.locked():
            if not {BEGUN, METADATA} <= {*self._place.files(self._save)}:
                raise FileNotFoundError(self._save)
            self._place.write_marker(marker)
        self._left.clear()
        with self._noting():
            self._place.write_back([self._save, MARKER])
        if not self._left:
            self._kept.clear()
        elif before:
            self._kept.append(before["save"])
        self._kept.append(self._save)
        removed = []
        with self._place.locked():
            for other in self._place.saves():
                # Where nothing is locked, a save of another run may have become valid meanwhile.
                now = self._place.read_marker()
                if other not in self._kept and now and now["save"] == self._save:
                    self._place.remove(other)
                    removed.append(other)
        self._place.write_back([], removed)

    def reason(self, error: BaseException) -> BaseException:
        """Return why this save has failed with an error: another run may have removed it."""
        with suppress(Exception):  # drivers of buckets raise all kinds of errors
            marker = self._place.read_marker()
            is_begun = self._place.exists(f"{self._save}/{BEGUN}")
            if marker and marker["save"] != self._save and not is_begun:
                if not self.together and len(present_run.ranks()) > 1:
                    return UsageError(
                        "another rank has saved in the same folder meanwhile, and there is no "
                        "process group in which ranks save together: save on one of them, or give "
                        "each a folder of its own"
                    )
                return UsageError(
                    "another run has saved in the same folder meanwhile, and its checkpoint is "
                    "there: give each run a folder of its own"
                )
        return error

    def settle(self) -> str:
        """Remove previous saves from this disk, unless it is rank 0's, which does so itself.

        Returns
        -------
        str
            Why the bucket of its volume does not have this save yet; empty if it does.
        """
        left, kept = self._left, [self._save]
        if self.is_uploaded:
            told = self.together.tell((left, self._kept), self.together.background_group())
            kept = told[0][1]
            # Rank 0 says that others lack something, and they say why.
            left = [reason for said, _ in reversed(told) for reason in said if told[0][0]]
        if self.is_own:
            with suppress(Exception):  # drivers of buckets raise all kinds of errors
                others = [each for each in self._place.saves() if each not in kept]
                for other in others:
                    self._place.remove(other)
                self._place.write_back([], others)
        return left[0] if left else ""

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


def _names_of(written: Sequence[Any]) -> list[str]:
    """Return the names of the files that torch has written."""
    return list(dict.fromkeys(each.storage_data.relative_path for each in written))


def _attempt(path: str, action: Any) -> tuple[str, Any]:
    """Return why an operation at a place failed, and its result."""
    try:
        return "", action(CheckpointPlace.of(path))
    except Exception as error:  # drivers of buckets raise all kinds of errors
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip("."), None
