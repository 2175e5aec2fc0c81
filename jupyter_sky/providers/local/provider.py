"""The local provider: nodes are processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import jupyter_sky
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.paths import runtime
from jupyter_sky.providers.base import AgentGone, Growth, Machine, Node, Progress, Standing
from jupyter_sky.providers.local import gpus
from jupyter_sky.providers.local.requirements import differences
from jupyter_sky.providers.mtls import Credentials, mint
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.serialization.user_modules import is_user_code

SHARED_MEMORY = Path("/dev/shm")
ROOMY = 2**30
"""Bytes of free shared memory from which on it is used for large data."""

BLOBS_OF = "jupyter-sky-{}"
"""The folder in shared memory that belongs to an agent's folder of that name."""


@dataclass(frozen=True)
class LocalMachine:
    """An agent on this computer, standing for one or more nodes.

    Attributes
    ----------
    computer
        Where it was started: several computers can share a home folder, and with it the registry.
    """

    folder: Path
    blobs: Path
    pid: int
    nodes: tuple[Node, ...]
    computer: str = field(default_factory=socket.gethostname)
    shares_files: bool = True

    async def open(self) -> socket.socket:
        """Connect to the agent's socket."""
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, str(self.folder / "agent.sock"))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            sock.close()
            raise AgentGone(error.strerror) from None
        except OSError:
            sock.close()
            raise
        return sock

    async def remove(self) -> None:
        """Kill an agent that does not answer any more and remove its files."""
        if _is_agent(self.pid, self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        shutil.rmtree(self.blobs, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def row(self) -> dict[str, Any]:
        """Return where the agent is."""
        return {
            "folder": str(self.folder),
            "blobs": str(self.blobs),
            "pid": self.pid,
            "computer": self.computer,
            "shares_files": self.shares_files,
            "nodes": [node.message() for node in self.nodes],
        }

    def with_nodes(self, nodes: Sequence[Node]) -> LocalMachine:
        """Return the same agent, standing for other nodes."""
        return replace(self, nodes=tuple(nodes))


@dataclass(frozen=True)
class Local:
    """Nodes that are processes on this machine.

    Parameters
    ----------
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    machines
        How many agents share the nodes. One is fastest; with more, what goes on between several
        machines goes on between processes here.
    shares_files
        Whether ranks import the person's own modules from where they are. If not, modules are sent
        to them, as to other machines.
    """

    grace: float = 60.0
    machines: int = 1
    shares_files: bool = True

    name = "local"
    usual_nodes = 1

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse GPUs that are not here and frameworks that are not installed."""
        if sys.platform != "linux":
            raise UsageError(
                f"local nodes need Linux, and this notebook runs on {sys.platform}: name machines "
                "that you can log in to, as in `--hosts gpu1,gpu2`."
            )
        for name in preload:
            if importlib.util.find_spec(name) is None:
                raise UsageError(
                    f"{name} is not installed in this notebook's environment: "
                    f"run `%pip install {name}`, or say `--plugin none` to go without it."
                )
        if spec.accelerator is not None:
            gpus.check(spec.accelerator, spec.nodes)
        _check_size("cpus", spec.cpus, os.cpu_count() or 1, "processors")
        _check_size("memory", spec.memory, psutil.virtual_memory().total / 2**30, "GB of memory")
        return differences(spec.image)

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Start the agents, each with its share of the nodes."""
        progress(f"starting {format_count(spec.nodes, 'local node')}")
        nodes = gpus.share(spec, gpus.gpus())
        shares = _shares(nodes, self.machines)
        names = [f"machine {index}" for index in range(len(shares))]
        credentials = mint(names) if len(shares) > 1 else []
        return await self._start_all(spec, identity, preload, 0, shares, credentials, len(nodes))

    async def grow(self, standing: Standing, progress: Progress) -> Growth:
        """Have the last agent stand for more nodes, or start others where there may be more."""
        kept, come = gpus.share_with_more(standing, gpus.gpus())
        progress(f"starting {format_count(len(come), 'local node')}")
        anew = {node.node: node for node in kept}
        machines = [
            machine.with_nodes([anew[node.node] for node in machine.nodes])
            for machine in standing.machines
        ]
        if len(machines) >= self.machines:
            *others, last = machines
            ranks = [rank for node in come for rank in gpus.ranks_of(node, gpus.gpus())]
            return Growth([], [*others, last.with_nodes([*last.nodes, *come])], ranks)
        shares = _shares(come, self.machines - len(machines))
        names = [f"machine {len(machines) + index}" for index in range(len(shares))]
        alone, *credentials = mint(["machine 0", *names])
        trusting = [
            replace(each, authority=each.authority + standing.authority) for each in credentials
        ]
        first = _fresh_index()
        started = await self._start_all(
            standing.spec,
            standing.identity,
            standing.preload,
            first,
            shares,
            trusting,
            len(kept) + len(come),
        )
        return Growth(started, machines, (), alone.authority, alone)

    async def _start_all(
        self,
        spec: ClusterSpec,
        identity: str,
        preload: Sequence[str],
        first: int,
        shares: Sequence[Sequence[Node]],
        credentials: Sequence[Credentials],
        count: int,
    ) -> list[Machine]:
        """Start agents, all or none, each for its share of the nodes; ``count`` is of all nodes."""
        loop = asyncio.get_running_loop()
        ranks = len(shares[0][0].ranks) * count
        env = await loop.run_in_executor(None, _variables, spec.image, ranks)
        start = partial(self._start, spec, identity, preload=preload, env=env)
        shown = [asdict(each) for each in credentials] or len(shares) * [None]
        starts = [
            loop.run_in_executor(
                None, partial(start, first + index, nodes, credentials=shown[index])
            )
            for index, nodes in enumerate(shares)
        ]
        together = asyncio.gather(*starts, return_exceptions=True)
        try:
            done = await asyncio.shield(together)
        except asyncio.CancelledError:
            for each in await together:
                if isinstance(each, LocalMachine):
                    await each.remove()
            raise
        machines: list[Machine] = [each for each in done if isinstance(each, LocalMachine)]
        if failed := [error for error in done if isinstance(error, BaseException)]:
            for machine in machines:
                await machine.remove()
            raise failed[0]
        return machines

    async def give_back(self, machines: Sequence[Machine]) -> None:
        """Do nothing: what remains of an agent that has ended is this computer."""

    def machine(self, row: Mapping[str, Any]) -> LocalMachine:
        """Return the machine that ``row`` describes."""
        nodes = tuple(map(Node.of, row["nodes"]))
        return LocalMachine(
            Path(row["folder"]),
            Path(row["blobs"]),
            row["pid"],
            nodes,
            row["computer"],
            row.get("shares_files", True),
        )

    def _start(
        self,
        spec: ClusterSpec,
        identity: str,
        index: int,
        nodes: Sequence[Node],
        preload: Sequence[str],
        credentials: dict[str, str] | None,
        env: Mapping[str, str],
    ) -> LocalMachine:
        folder = runtime() / f"{identity}-{index}"
        folder.mkdir(mode=0o700)
        blobs = _blob_folder(folder)
        settings = {
            "cluster": spec.name,
            "id": identity,
            "peer": None,
            "interface": None,
            "credentials": credentials,
            "socket": str(folder / "agent.sock"),
            "blobs": str(blobs),
            "blob_limit": None,
            "grace": self.grace,
            "idle_timeout": spec.idle_timeout,
            "preload": list(preload),
            "cwd": str(_working_folder() if self.shares_files else folder),
            "sys_path": self._visible_path(),
            "python_path": os.environ.get("PYTHONPATH"),
            "env": env,
            "ranks": [rank for node in nodes for rank in gpus.ranks_of(node, gpus.gpus())],
        }
        with open(folder / "spec.json", "w", opener=_private) as file:
            json.dump(settings, file)
        started = subprocess.run(
            # Not from the folder it stands in: a `types.py` of the person's is not the library's.
            [sys.executable, "-P", "-m", "jupyter_sky.node", str(folder)],
            env={**os.environ, "PYTHONPATH": _import_path()},
            cwd=str(settings["cwd"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        machine = LocalMachine(folder, blobs, 0, (), shares_files=self.shares_files)
        if started.returncode:
            log = folder / "agent.log"
            said = log.read_text() if log.exists() else started.stderr
            asyncio.run(machine.remove())
            raise SkyError(f"a local node did not start: {_last_line(said)}")
        about = json.loads(started.stdout)
        ours = tuple(replace(node, port=about["port"]) for node in nodes)
        return replace(machine, pid=about["pid"], nodes=ours)

    def _visible_path(self) -> list[str]:
        entries = [path or str(_working_folder()) for path in sys.path]
        if self.shares_files:
            return entries
        return [path for path in entries if not is_user_code(path)]


def _check_size(option: str, wanted: str | int | float | None, here: float, unit: str) -> None:
    if wanted is not None and float(str(wanted).rstrip("+")) > here:
        raise UsageError(
            f"--{option} {wanted} was asked for, but this machine has {here:.0f} {unit}: "
            f"ask for less, or leave --{option} out."
        )


def _fresh_index() -> int:
    """Return a number of an agent that no other of its cluster has, or had.

    What is left of one that was killed removes its folders a moment later.
    """
    return time.time_ns() // 1_000_000 % 1_000_000_000


def _shares(nodes: Sequence[Node], most: int) -> list[Sequence[Node]]:
    count = min(most, len(nodes))
    return [nodes[i * len(nodes) // count : (i + 1) * len(nodes) // count] for i in range(count)]


def _threads(ranks: int) -> dict[str, str]:
    """Keep ranks that share the processors from crowding each other out, as torchrun does."""
    if "OMP_NUM_THREADS" in os.environ or ranks == 1:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"OMP_NUM_THREADS": str(max(1, (cores or 1) // ranks))}


def _blob_folder(folder: Path) -> Path:
    # Containers often have a shared memory of 64 MB; the disk, and its cache, is better then.
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= ROOMY
    place = SHARED_MEMORY / BLOBS_OF.format(folder.name) if roomy else folder / "blobs"
    place.mkdir(mode=0o700)
    return place


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise SkyError(
            "the notebook's working folder is gone: go to one that is there with `%cd`."
        ) from None


def _variables(image: Image, ranks: int) -> dict[str, str]:
    """Return what every rank finds in its environment."""
    return {
        "PATH": _path(),
        **_threads(ranks),
        **image.env,
        **_shell_variables(image.shell_vars),
    }


def _path() -> str:
    """Return where ranks find commands: first of all those of the notebook's environment."""
    scripts = str(Path(sys.executable).parent)
    others = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([scripts, *(entry for entry in others if entry != scripts)])


def _shell_variables(commands: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, command in commands.items():
        done = subprocess.run(
            command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise SkyError(
                f"shell_vars[{name!r}] has no value: {command!r} ended with status "
                f"{done.returncode}, {_last_line(done.stderr)}"
            )
        found[name] = done.stdout.rstrip("\n")
    return found


def _import_path() -> str:
    package = str(Path(jupyter_sky.__file__).parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _is_agent(pid: int, folder: Path) -> bool:
    # A process id alone can have gone to somebody else since.
    with contextlib.suppress(OSError):
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
