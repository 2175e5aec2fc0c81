"""What kernels tell, as far as it can be used: each file is read and checked once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.cluster.inventory import kernel_files
from jupyter_sky.cluster.inventory.kernel_files import ClusterReport, KernelFile, Unreadable
from jupyter_sky.server.schema import Invalid, check


@dataclass(frozen=True)
class Account:
    """What one kernel tells of one cluster.

    Attributes
    ----------
    flaw
        Why its snapshot cannot be shown; empty if it can.
    is_live
        Whether the kernel is there, on this computer.
    """

    kernel: KernelFile
    told: ClusterReport
    flaw: str
    is_live: bool

    @property
    def is_running(self) -> bool:
        """Whether something runs, as far as it tells."""
        run = None if self.flaw else self.told.snapshot["run"]
        return run is not None and run["state"] == "running"


@dataclass(frozen=True)
class _File:
    stamp: tuple[int, int]
    kernel: KernelFile | None
    flaws: tuple[str, ...]


class KernelReports:
    """Hears what kernels tell.

    Parameters
    ----------
    runtime
        Jupyter's runtime directory.
    """

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self._files: dict[Path, _File] = {}

    def accounts(self) -> tuple[list[Account], list[str]]:
        """Return what there is, of live kernels and others, and a sentence for each bad file."""
        found: list[Account] = []
        troubles = []
        for path, file in self._current():
            if file.kernel is None:
                troubles.append(f"What kernel {path.stem[:60]} tells is left out: {file.flaws[0]}.")
                continue
            is_live = file.kernel.is_live
            found += (
                Account(file.kernel, told, flaw, is_live)
                for told, flaw in zip(file.kernel.clusters, file.flaws, strict=True)
            )
        return found, troubles

    def kernel(self, identity: str) -> KernelFile | None:
        """Return what a live kernel tells."""
        for _, file in self._current():
            if file.kernel and file.kernel.kernel == identity and file.kernel.is_live:
                return file.kernel
        return None

    def connection_file(self, kernel: str) -> Path:
        """Return the file by which a kernel is reached."""
        return self.runtime / f"kernel-{kernel}.json"

    def forget(self, wanted: set[str]) -> None:
        """Remove the files of dead kernels that know none of the ``wanted`` clusters."""
        for path, file in self._current():
            kernel = file.kernel
            if kernel is None or kernel.is_live or kernel.is_elsewhere:
                continue
            if not wanted & {told.id for told in kernel.clusters}:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _current(self) -> Iterator[tuple[Path, _File]]:
        # Several threads hear at once: each has a dictionary of its own until it is complete.
        before, files = self._files, {}
        for path in kernel_files.paths(self.runtime):
            # Its kernel may end at any moment.
            with contextlib.suppress(OSError):
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_size)
                known = before.get(path)
                files[path] = known if known and known.stamp == stamp else _read(path, stamp)
        self._files = files
        return iter(files.items())


def _read(path: Path, stamp: tuple[int, int]) -> _File:
    try:
        kernel = kernel_files.read(path)
    except Unreadable as why:
        return _File(stamp, None, (str(why),))
    if kernel.kernel != path.stem:
        return _File(stamp, None, ("it is of another kernel",))
    return _File(stamp, kernel, tuple(_flaw(told) for told in kernel.clusters))


def _flaw(told: ClusterReport) -> str:
    try:
        check("Snapshot", told.snapshot)
    except Invalid as why:
        return str(why)
    return ""
