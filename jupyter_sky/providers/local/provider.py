"""The local provider: nodes are processes of this computer."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.paths import command_path, of_the_user, runtime, working_folder
from jupyter_sky.providers.agent import start_agent
from jupyter_sky.providers.base import Machine, Node, Progress
from jupyter_sky.providers.buckets.volume import check_here
from jupyter_sky.providers.local.bootstrap import bootstrap
from jupyter_sky.providers.local.gpus import check_gpus, visible_gpus
from jupyter_sky.providers.local.machine import LocalMachine
from jupyter_sky.providers.local.placement import place_new_nodes, place_nodes, rank_specs
from jupyter_sky.providers.local.requirements import differences
from jupyter_sky.providers.local.variables import rank_variables
from jupyter_sky.providers.mtls import Credentials
from jupyter_sky.providers.node_defaults import blob_folder, free_shared_memory
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.serialization.user_modules import ImportPaths, is_user_code
from jupyter_sky.transport.tasks import shielded

_MEMORY_OF_RANK = 8_000_000  # bytes of private memory of a rank that has imported nothing
_FILES_OF_RANK = 8  # file descriptors that the agent has open for a rank


@dataclass(frozen=True)
class Local:
    """Nodes that are processes on this machine.

    Parameters
    ----------
    grace
        Seconds after which nodes end if no notebook is connected and nothing runs.
    machines
        How many agents share the nodes. One is fastest; with several, processes here communicate
        like several machines.
    shares_files
        Whether ranks import the user's own modules from their original place. If not, modules are
        sent to them, as to other machines.
    """

    grace: float = 60.0
    machines: int = 1
    shares_files: bool = True

    name = "local"
    default_nodes = 1

    def check(self, spec: ClusterSpec, preload: Sequence[str], present: int = 0) -> tuple[str, ...]:
        """Refuse GPUs that are not here and frameworks that are not installed."""
        if sys.platform != "linux":
            raise UsageError(
                f"local nodes need Linux, and this notebook runs on {sys.platform}: name machines "
                "that you can log in to, as in `--hosts gpu1,gpu2`."
            )
        # Looking for a module within a package, such as torch, would import the package here.
        for name in dict.fromkeys(each.partition(".")[0] for each in preload):
            if importlib.util.find_spec(name) is None:
                raise UsageError(
                    f"{name} is not installed in this notebook's environment: "
                    f"run `%pip install {name}`, or use `--plugin none` to do without it."
                )
        if spec.wanted_gpus is not None:
            check_gpus(spec.wanted_gpus, spec.nodes)
        _check_ranks(spec.nodes * (spec.procs_per_node or 1))
        _check_size("cpus", spec.cpus, os.cpu_count() or 1, "processors")
        _check_size("memory", spec.memory, psutil.virtual_memory().total / 2**30, "GB of memory")
        check_here(spec.volumes)
        return differences(spec.image)

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Start the agents, each with its share of the nodes."""
        variables = {"PATH": command_path(os.environ), **spec.image.env}
        await bootstrap(spec.image.bootstrap, working_folder(), variables, progress)
        progress(f"starting {format_count(spec.nodes, 'local node')}")
        shares = _shares(place_nodes(spec, visible_gpus(spec.wanted_gpus)), self.machines)
        started = await self._start_agents(RunningCluster(spec, identity, preload), 0, shares)
        return [*started.machines]

    def machine(self, row: Mapping[str, Any]) -> LocalMachine:
        """Return the machine that ``row`` describes."""
        return LocalMachine.from_row(row)

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Let the last agent stand for more nodes, or start others if there may be more."""
        gpus = visible_gpus(running.spec.wanted_gpus)
        kept, new = place_new_nodes(running, gpus)
        progress(f"starting {format_count(len(new), 'local node')}")
        by_number = {node.node: node for node in kept}
        machines = [
            machine.with_nodes([by_number[node.node] for node in machine.nodes])
            for machine in running.machines
        ]
        if len(machines) >= self.machines:
            *others, last = machines
            port, shown = last.nodes[0].port, last.nodes[0].fingerprint
            added = [replace(node, port=port, fingerprint=shown) for node in new]
            enlarged = last.with_nodes([*last.nodes, *added])
            return AddedNodes([], [*others, enlarged], rank_specs(new, gpus))
        shares = _shares(new, self.machines - len(machines))
        started = await self._start_agents(running, _unused_index(), shares)
        return replace(started, existing=machines)

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Do nothing: the machine is this computer."""

    # Starting agents

    async def _start_agents(
        self,
        cluster: RunningCluster,
        first: int,
        shares: Sequence[Sequence[Node]],
    ) -> AddedNodes:
        """Start agents, all or none, each for its share of the nodes; ``first`` is its index."""
        loop = asyncio.get_running_loop()
        ranks = len(shares[0][0].ranks) * cluster.spec.nodes
        env = await loop.run_in_executor(None, rank_variables, cluster.spec.image, ranks)
        start = partial(self._start_agent, cluster, env)
        names = [f"machine {first + index}" for index in range(len(shares))]
        shown, alone = cluster.issue_credentials(names)
        starts = [
            loop.run_in_executor(None, start, first + index, nodes, shown[index])
            for index, nodes in enumerate(shares)
        ]
        together = asyncio.gather(*starts, return_exceptions=True)
        try:
            done = await shielded(together)
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
        return AddedNodes(machines, cluster.machines, credentials=alone)

    def _start_agent(
        self,
        cluster: RunningCluster,
        env: Mapping[str, str],
        index: int,
        nodes: Sequence[Node],
        credentials: Credentials | None,
    ) -> LocalMachine:
        folder = runtime() / f"{cluster.identity}-{index}"
        folder.mkdir(mode=0o700)
        blobs = Path(blob_folder(str(folder), free_shared_memory()))
        blobs.mkdir(mode=0o700)
        machine = LocalMachine(folder, blobs, 0, (), shares_files=self.shares_files)
        try:
            spec = replace(
                cluster.agent_spec(self.grace, credentials),
                socket=str(folder / "agent.sock"),
                blobs=str(blobs),
                ranks=tuple(rank_specs(nodes, visible_gpus(cluster.spec.wanted_gpus))),
                cwd=str(working_folder() if self.shares_files else folder),
                sys_path=tuple(self._import_paths()),
                python_path=os.environ.get("PYTHONPATH"),
                env=env,
                templates=str(of_the_user()),
            )
            ready = start_agent(folder, spec)
        except BaseException:
            machine.remove_now()
            raise
        listening = tuple(
            replace(node, port=ready["port"], fingerprint=ready["fingerprint"]) for node in nodes
        )
        return replace(machine, pid=ready["pid"], nodes=listening)

    def _import_paths(self) -> list[str]:
        """Return the import paths of ranks: the notebook's, perhaps without the user's own."""
        entries = ImportPaths.here().path
        if self.shares_files:
            return list(entries)
        return [path for path in entries if not is_user_code(path)]


def _check_ranks(wanted: int) -> None:
    """Refuse more ranks than this computer's memory and descriptors allow."""
    import resource  # which Windows lacks

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    by_memory = psutil.virtual_memory().total // _MEMORY_OF_RANK
    most = by_memory if files == resource.RLIM_INFINITY else min(by_memory, files // _FILES_OF_RANK)
    if wanted > most:
        raise UsageError(
            f"{wanted:,} local ranks were asked for, but this computer has room for "
            f"{most:,} at most: ask for fewer."
        )


def _check_size(option: str, wanted: str | int | float | None, here: float, unit: str) -> None:
    if wanted is not None and float(str(wanted).rstrip("+")) > here:
        raise UsageError(
            f"--{option} {wanted} was asked for, but this machine has {here:.0f} {unit}: "
            f"ask for less, or leave --{option} out."
        )


def _shares(nodes: Sequence[Node], most: int) -> list[Sequence[Node]]:
    """Distribute nodes among at most that many agents."""
    count = min(most, len(nodes))
    return [nodes[i * len(nodes) // count : (i + 1) * len(nodes) // count] for i in range(count)]


def _unused_index() -> int:
    """Return an index that no agent of the cluster has or had.

    The fork server of a killed agent removes its folders a moment later.
    """
    return time.time_ns() // 1_000_000 % 1_000_000_000
