"""Kernel files: each live kernel writes what it knows of its clusters to one small file.

They are below Jupyter's runtime directory, where the server extension reads them, so that the
sidebar never waits for a kernel that is busy. A file is replaced as a whole. A file names the
process that wrote it; it is stale once that process is gone, as after a kill.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.paths import home, replace_text
from jupyter_sky.transport.protocol.shape import Check, check_for

VERSION = 2

T = TypeVar("T")

LARGEST = 16 * 2**20
"""Bytes of a file, above which it is none of ours."""

CONTROL_MESSAGE_TYPE = "sky_request"
"""Type of the messages by which pages and the server ask a kernel, on its control channel."""

BEGIN_BY = "begin_by"
"""The name in such a message of when, in seconds since the epoch, the server no longer waits."""


class Unreadable(ValueError):
    """A file that is not what a kernel of this version writes; says why."""


@dataclass(frozen=True)
class ClusterReport:
    """What a kernel writes of one cluster.

    Attributes
    ----------
    id
        The cluster's id in the registry.
    snapshot
        A `jupyter_sky.cluster.snapshot.Snapshot`, as far as one can trust a file.
    idle_since
        Since when nothing runs on it, in seconds since the epoch; ``None`` while something does, or
        where the kernel was not there when it began.
    """

    id: str
    snapshot: dict[str, Any]
    idle_since: float | None


@dataclass(frozen=True)
class KernelFile:
    """The content of a kernel's file.

    Attributes
    ----------
    kernel
        Jupyter's id of the kernel.
    jupyter_sky
        The version that the kernel has loaded.
    notebook
        Path of the notebook, or empty.
    home
        Where the kernel has its registry.
    computer, pid, mark
        The process that wrote it, as `processes.describe` says it.
    seen
        When it was written, in seconds since the epoch.
    clusters
        The clusters that the kernel is connected to.
    """

    kernel: str
    notebook: str
    seen: float
    clusters: tuple[ClusterReport, ...] = ()
    jupyter_sky: str = __version__
    home: str = field(default_factory=lambda: str(home()))
    computer: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    mark: str | None = field(default_factory=lambda: processes.describe()["mark"])

    @property
    def is_elsewhere(self) -> bool:
        """Whether the kernel is on another computer, which shares the folder with this one."""
        return self.computer != socket.gethostname() and not self.is_live

    @property
    def is_live(self) -> bool:
        """Whether the process that wrote it is there, on this computer."""
        process = {"computer": self.computer, "pid": self.pid, "mark": self.mark}
        return processes.is_there(process, since=self.seen)


def news(file: KernelFile) -> tuple[object, ...]:
    """Return what of a file users want to see as soon as it changes; the rest may come later.

    Raises
    ------
    Unreadable
        When a snapshot is none.
    """
    try:
        return tuple((each.id, *_states(each.snapshot)) for each in file.clusters)
    except (KeyError, TypeError):
        raise Unreadable("its snapshot is none") from None


def _states(snapshot: dict[str, Any]) -> tuple[object, ...]:
    cluster, run = snapshot["cluster"], snapshot["run"]
    return (
        (cluster["phase"], cluster["note"]),
        run and (run["id"], run["state"]),
        tuple((rank["phase"], rank["outcome"]) for rank in snapshot["ranks"]),
    )


def folder(runtime: Path) -> Path:
    """Return where the files are, below Jupyter's runtime directory."""
    return runtime / "jupyter-sky"


def write(runtime: Path, content: KernelFile) -> None:
    """Write the file of this kernel, in place of the one before."""
    place = folder(runtime)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"version": VERSION, **asdict(content)})
    replace_text(place / f"{content.kernel}.json", text)


def remove(runtime: Path, kernel: str) -> None:
    """Remove the file of a kernel."""
    with contextlib.suppress(OSError):
        (folder(runtime) / f"{kernel}.json").unlink()


def paths(runtime: Path) -> list[Path]:
    """Return the files that are there."""
    with contextlib.suppress(OSError):
        return sorted(folder(runtime).glob("*.json"))
    return []


def stamp(status: os.stat_result) -> tuple[int, ...]:
    """Return what differs in the status of a file once it was written again.

    The number of the file tells what its time does not: some disks write whole seconds. A file and
    the one that takes its place are both there for a moment, so that their numbers differ.
    """
    return status.st_ino, status.st_mtime_ns, status.st_size


def read(path: Path) -> KernelFile:
    """Return what a file says.

    Raises
    ------
    Unreadable
        When it is half-written, of another version, or something else altogether.
    OSError
        When it is gone.
    """
    if path.stat().st_size > LARGEST:
        raise Unreadable("it is too large")
    try:
        # A page could not read what JSON has no word for.
        found = json.loads(path.read_bytes(), parse_constant=_refuse, parse_float=_finite)
        if not isinstance(found, dict):
            raise Unreadable("it is none of ours")
        version = found.pop("version", None)
        if version != VERSION:
            raise Unreadable(f"it is of version {version} of these files, and this is {VERSION}")
        clusters = tuple(_made(ClusterReport, **each) for each in found.pop("clusters"))
        return replace(_made(KernelFile, **found), clusters=clusters)
    except Unreadable:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Unreadable(f"it cannot be read ({type(error).__name__})") from None


def _made(kind: Callable[..., T], **found: Any) -> T:
    """Return a dataclass of what a file has, if that is of the types that it is declared with."""
    made, checks = kind(**found), _checks(kind)
    for name, value in found.items():
        if not checks[name](value):
            raise Unreadable(f"its {name} is none")
    return made


@functools.cache
def _checks(kind: Callable[..., object]) -> dict[str, Check]:
    return {name: check_for(hint) for name, hint in get_type_hints(kind).items()}


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(number: str) -> NoReturn:
    raise Unreadable(f"it has {number[:20]} for a number")
