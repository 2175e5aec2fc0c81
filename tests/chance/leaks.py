"""What a cluster, and the process of its notebook, leave behind."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from jupyter_sky.cluster.inventory import registry
from tests.chance.world import World
from tests.node_processes import processes_of_node
from tests.waiting import PATIENCE

_LISTENS = "0A"  # as Linux writes the state of a socket
_GONE_WITHIN = PATIENCE  # an agent takes a client to be gone after half a minute


@dataclass(frozen=True)
class Belongings:
    """What one agent has: files that are open, processes, and files that are unfinished.

    The logs of ranks are not among the files: those of ranks that have left can still be read. Nor
    is the port for other agents, which one that was alone opens for the first of them.
    """

    descriptors: int
    processes: int
    unfinished: int


@dataclass(frozen=True)
class Traces:
    """Where there is something of a cluster while it is up."""

    processes: tuple[psutil.Process, ...]
    folders: tuple[Path, ...]


def belongings(world: World) -> list[Belongings]:
    """Return what each agent of a cluster has."""
    found = []
    for machine in world.machines:
        agent = world.agent(machine)
        assert agent, f"an agent is not there: {machine}"
        found.append(
            Belongings(
                len(_open_files(agent)),
                len(processes_of_node(agent)),
                len(list(world.path(machine, "blobs").glob("*.part"))),
            )
        )
    return found


def traces(world: World) -> Traces:
    """Return where there is something of a cluster now."""
    machines = world.machines
    processes = []
    for agent in map(world.agent, machines):
        if agent:
            processes += processes_of_node(agent)
    folders = [world.path(each, which) for each in machines for which in ("folder", "blobs")]
    return Traces(tuple(processes), tuple(folders))


def check_gone(traces: Traces, name: str) -> None:
    """Check that nothing is left of a cluster that was ended."""
    until = time.monotonic() + _GONE_WITHIN
    while alive := [each for each in traces.processes if _is_alive(each)]:
        assert time.monotonic() < until, f"processes were left behind: {alive}"
        time.sleep(0.02)
    left = [folder for folder in traces.folders if folder.exists()]
    assert not left, f"folders were left behind: {left}"
    assert registry.find(name) is None, "its row was left behind"


def check_same(before: list[Belongings], world: World) -> None:
    """Check that agents have what they had; what is closed takes a moment."""
    until = time.monotonic() + _GONE_WITHIN
    while (found := belongings(world)) != before:
        assert time.monotonic() < until, f"an agent had {before}, and has {found}: {files(world)}"
        time.sleep(0.05)


def files(world: World) -> list[list[str]]:
    """Return what each agent has open."""
    agents = [world.agent(machine) for machine in world.machines]
    return [sorted(_open_files(agent)) for agent in agents if agent]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # whose parent has not asked after it
    except psutil.NoSuchProcess:
        return False


def _open_files(agent: psutil.Process) -> list[str]:
    links = (str(each.readlink()) for each in Path(f"/proc/{agent.pid}/fd").iterdir())
    ports = _ports(agent)
    return [link for link in links if "/logs/" not in link and link not in ports]


def _ports(agent: psutil.Process) -> set[str]:
    """Return the sockets that listen at ports where an agent is, which may be another host."""
    _, *lines = Path(f"/proc/{agent.pid}/net/tcp").read_text().splitlines()
    return {f"socket:[{each[9]}]" for each in map(str.split, lines) if each[3] == _LISTENS}


@dataclass(frozen=True)
class Kernel:
    """What this process has: files that are open, and threads but for those of asyncio's pool."""

    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Kernel:
        """Return what it has at this moment."""
        threads = [each for each in threading.enumerate() if not each.name.startswith("asyncio")]
        return cls(len(os.listdir("/proc/self/fd")), len(threads))  # noqa: PTH208

    def check(self) -> None:
        """Check that it has no more than before."""
        until = time.monotonic() + _GONE_WITHIN
        while (now := Kernel.now()).descriptors > self.descriptors or now.threads > self.threads:
            assert time.monotonic() < until, f"this process had {self}, and has {now}"
            time.sleep(0.05)
