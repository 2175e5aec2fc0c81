"""The files that kernels write about their clusters, read and checked once each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.cluster.inventory import kernel_files
from jupyter_sky.cluster.inventory.kernel_files import ClusterReport, KernelFile, Unreadable
from jupyter_sky.server.schema import Invalid, check


@dataclass(frozen=True)
class CheckedReport:
    """A kernel's report about a cluster.

    Attributes
    ----------
    kernel
        The file of the kernel.
    cluster
        The part of the file about the cluster.
    flaw
        Why the snapshot cannot be shown; empty if it can.
    is_live
        Whether the kernel's process exists, on this computer.
    """

    kernel: KernelFile
    cluster: ClusterReport
    flaw: str
    is_live: bool

    @property
    def is_running(self) -> bool:
        """Whether something runs on the cluster, according to the kernel."""
        return self._run is not None and self._run["state"] == "running"

    @property
    def order(self) -> tuple[float, float]:
        """When its run went on last, and when it was written, to put reports in order."""
        run = self._run
        return (run["started"] + run["seconds"] if run is not None else 0.0), self.kernel.seen

    @property
    def _run(self) -> Mapping[str, Any] | None:
        return None if self.flaw else self.cluster.snapshot["run"]


@dataclass(frozen=True)
class _CachedFile:
    """A file that was read: the kernel's part and a flaw for each cluster, or why it is unusable.

    Attributes
    ----------
    stamp
        That of `kernel_files.stamp`.
    """

    stamp: tuple[int, ...]
    kernel: KernelFile | None
    flaws: tuple[str, ...]


class KernelReports:
    """Reads the kernels' files; a file that has not changed is not read again.

    Parameters
    ----------
    runtime
        Jupyter's runtime directory.
    """

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self._files: dict[Path, _CachedFile] = {}

    def all(self) -> tuple[list[CheckedReport], list[str]]:
        """Return the reports of all kernels, live or not, and a sentence for each unusable file."""
        found: list[CheckedReport] = []
        problems = []
        for path, file in self._current():
            if file.kernel is None:
                problems.append(
                    f"The report of kernel {path.stem[:60]} is ignored: {file.flaws[0]}."
                )
                continue
            is_live = file.kernel.is_live
            found += (
                CheckedReport(file.kernel, cluster, flaw, is_live)
                for cluster, flaw in zip(file.kernel.clusters, file.flaws, strict=True)
            )
        return found, problems

    def kernel(self, identity: str) -> KernelFile | None:
        """Return the file of a kernel; ``None`` if it has none, or the kernel has ended."""
        for _, file in self._current():
            if file.kernel and file.kernel.kernel == identity and file.kernel.is_live:
                return file.kernel
        return None

    def connection_file(self, kernel: str) -> Path:
        """Return Jupyter's connection file of a kernel."""
        return self.runtime / f"kernel-{kernel}.json"

    def remove_stale(self, existing: set[str]) -> None:
        """Remove the files of ended kernels that mention none of the ``existing`` clusters."""
        for path, file in self._current():
            kernel = file.kernel
            if kernel is None or kernel.is_live or kernel.is_elsewhere:
                continue
            if not existing & {cluster.id for cluster in kernel.clusters}:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _current(self) -> Iterator[tuple[Path, _CachedFile]]:
        # Several threads may do this at once: each fills a new dictionary, so that no thread sees
        # an incomplete one.
        before, files = self._files, {}
        for path in kernel_files.paths(self.runtime):
            # Its kernel may end, and remove it, at any moment.
            with contextlib.suppress(OSError):
                stamp = kernel_files.stamp(path.stat())
                known = before.get(path)
                files[path] = known if known and known.stamp == stamp else _read(path, stamp)
        self._files = files
        return iter(files.items())


def _read(path: Path, stamp: tuple[int, ...]) -> _CachedFile:
    try:
        kernel = kernel_files.read(path)
    except Unreadable as why:
        return _CachedFile(stamp, None, (str(why),))
    if kernel.kernel != path.stem:
        return _CachedFile(stamp, None, ("it is of another kernel",))
    return _CachedFile(stamp, kernel, tuple(map(_flaw, kernel.clusters)))


def _flaw(cluster: ClusterReport) -> str:
    try:
        check("Snapshot", cluster.snapshot)
    except Invalid as why:
        return str(why)
    return ""
