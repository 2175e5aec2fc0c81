"""Orphans: rows of the registry, folders and processes of clusters whose agents are gone.

A cluster is alive as long as one of its agents is. On this computer, only what has our names and
belongs to this user is examined; of other machines, only those in the registry. What may be about
to start, and what cannot be reached, is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from jupyter_sky.cluster.inventory import owed_ends, registry
from jupyter_sky.cluster.inventory.machines import every_machine_of
from jupyter_sky.cluster.inventory.owed_ends import Origin
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.cluster.inventory.storage.row import START_WITHIN, RegistryRow
from jupyter_sky.formatting import format_bytes, format_count
from jupyter_sky.paths import runtime
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Machine
from jupyter_sky.providers.cloud import CloudProvider
from jupyter_sky.providers.node_defaults import BLOBS_OF, SHARED_MEMORY
from jupyter_sky.transport import event_loop

_FOLDER = re.compile(r"([0-9a-f]{8})-\d+")  # the cluster's id, and which of its agents
_TASK = re.compile(r'"task_id": "[^"]*-([0-9a-f]{8})"')
_BLOBS = re.compile(BLOBS_OF.format(_FOLDER.pattern))


_FORGOTTEN_AFTER = 7 * 24 * 3600.0  # seconds


@dataclass
class Orphan:
    """What is left of one cluster.

    Attributes
    ----------
    id
        The cluster's id.
    name
        Its name, as far as something tells it.
    recorded
        Whether it is in the registry.
    folders
        Its folders: of its agents, and of its large data in shared memory.
    processes
        Its processes that have lost their agent.
    machines, origin
        Other machines that it was on, and what is recorded of it where they do not answer.
    """

    id: str
    name: str | None = None
    recorded: bool = False
    folders: list[Path] = field(default_factory=list)
    processes: list[psutil.Process] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)
    origin: Origin | None = None

    def __str__(self) -> str:
        parts = ["its entry in the registry"] if self.recorded else []
        if count := len(self.processes):
            parts.append(f"{count} process{'es' * (count > 1)}")
        if count := len(self.folders):
            parts.append(f"{format_count(count, 'folder')} with {format_bytes(self.size)}")
        if hosts := [node.host for machine in self.machines for node in machine.nodes]:
            parts.append(f"what is left of it on {', '.join(hosts)}")
        return f"{self.name or f'a cluster with the id {self.id}'}: {', '.join(parts)}"

    @property
    def size(self) -> int:
        """Bytes in its folders."""
        return sum(_size(folder) for folder in self.folders)

    def remove(self) -> None:
        """End and remove all of it."""
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self.origin:
            # What does not answer is owed: the row that says where it is goes with the rest.
            event_loop.wait(owed_ends.remove_machines(self.origin, self.machines))
        registry.remove(self.id)


def find() -> list[Orphan]:
    """Return the orphans of this user: on this computer, and on machines in the registry."""
    now = time.time()
    found: dict[str, Orphan] = {}

    def of(identity: str) -> Orphan:
        return found.setdefault(identity, Orphan(identity))

    alive = set()
    # Rows come first: a cluster that ends meanwhile has its row removed last.
    rows = registry.rows()
    gone = list(_gone_elsewhere(rows))
    for row in rows:
        if row.provider != "local" or row.is_starting or row.is_elsewhere:
            alive.add(row.id)
        else:
            of(row.id).recorded = True
            of(row.id).name = row.name
    for identity, folder in _folders(now):
        of(identity).folders.append(folder)
        if _answers(folder):
            alive.add(identity)
        elif of(identity).name is None:
            of(identity).name = _name(folder)
    for identity, process, is_agent in _processes():
        of(identity).processes.append(process)
        if is_agent:
            alive.add(identity)
    return [*gone, *(each for each in found.values() if each.id not in alive)]


def forget_old() -> None:
    """Remove the rows of clusters on the user's computers that have ended long ago by themselves.

    Only the row is left of these, which would stay in all lists. Of others the user decides, with
    `%sky gc`.
    """
    until = time.time() - _FORGOTTEN_AFTER
    for row in registry.rows():
        has_ended = row.provider == "local" and row.machines and row.ends_by.time < until
        if not has_ended or row.is_starting:
            continue
        named = [machine.get(name) for machine in row.machines for name in ("folder", "blobs")]
        # On another computer, they are as gone as its agents.
        here = [] if row.is_elsewhere else filter(None, named)
        if not any(Path(folder).exists() for folder in here):
            registry.remove(row.id)


def _gone_elsewhere(rows: Sequence[RegistryRow]) -> Iterator[Orphan]:
    """Find clusters on other machines that have lost an agent for good."""
    every = providers()
    # What is rented is more than its agents: `cloud_resources` finds it.
    known = {name for name, each in every.items() if not isinstance(each, CloudProvider)} - {
        "local"
    }
    others = [row for row in rows if row.provider in known]
    for row, result in zip(others, probe(others, every), strict=True):
        if result.phase is ProbePhase.GONE:
            provider = every[row.provider]
            machines = every_machine_of(row, provider)
            origin = Origin.of_row(row, provider)
            yield Orphan(row.id, row.name, recorded=True, machines=machines, origin=origin)


def _folders(now: float) -> Iterator[tuple[str, Path]]:
    """Find our folders, except those that are so new that they may have no agent yet."""
    if not hasattr(os, "getuid"):
        return  # there are no nodes on Windows
    for parent, pattern in ((runtime(), _FOLDER), (SHARED_MEMORY, _BLOBS)):
        for folder in parent.iterdir() if parent.is_dir() else ():
            match = pattern.fullmatch(folder.name)
            if match is None or folder.is_symlink():
                continue
            with contextlib.suppress(OSError):
                status = folder.stat()
                old = now - status.st_mtime > START_WITHIN
                if status.st_uid == os.getuid() and (old or _has_started(folder)):
                    yield match[1], folder


def _has_started(folder: Path) -> bool:
    """Return whether there has been an agent in a folder: it writes its log first of all."""
    if folder.parent == SHARED_MEMORY:
        folder = runtime() / folder.name.removeprefix(BLOBS_OF.format(""))
    return (folder / "agent.log").exists()


def _answers(folder: Path) -> bool:
    """Return whether an agent listens in a folder, also one in another container."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(folder / "agent.sock"))
        except BlockingIOError:
            return True  # it is there, but has not accepted many others for long
        except OSError:
            return False
    return True


def _name(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "spec.json").read_text())["cluster"])
    except (OSError, ValueError, KeyError):
        return None


def _processes() -> Iterator[tuple[str, psutil.Process, bool]]:
    """Find processes of clusters: the id of the cluster, and whether it is an agent."""
    if not hasattr(os, "getuid"):
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            match process.cmdline():
                case [_, "-P", "-m", "jupyter_sky.node", folder]:
                    identity, is_agent = _FOLDER.fullmatch(Path(folder).name), True
                case [_, "-P", "-m", "jupyter_sky.node.forking.fork_server", _, folder, *_]:
                    identity, is_agent = _FOLDER.fullmatch(Path(folder).name), False
                case _:
                    # What ranks start inherits their variables.
                    pool = process.environ().get("COMPUTE_POOL", "")
                    identity, is_agent = _TASK.search(pool), False
            if identity:
                yield identity[1], process, is_agent


def _size(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(path.lstat().st_size for path in folder.rglob("*"))
    return 0
