"""The Slurm provider: nodes are those of jobs, or of the job that the notebook runs in."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list
from jupyter_sky.providers.base import AddedNodes, Machine, Node, Progress, RunningCluster
from jupyter_sky.providers.cloud import CloudResources
from jupyter_sky.providers.local.requirements import differences
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.providers.slurm.allocation import Allocation, allocation, own_job, own_nodes
from jupyter_sky.providers.slurm.commands import (
    SlurmError,
    ask,
    cancel,
    hosts_of,
    job_state,
    number_of,
)
from jupyter_sky.providers.slurm.machine import SlurmMachine
from jupyter_sky.providers.slurm.partitions import resource_of
from jupyter_sky.providers.slurm.queue import QueuedJob, is_known, owner, queued_jobs
from jupyter_sky.providers.slurm.script import job_options
from jupyter_sky.providers.slurm.starting import start_agents
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop

_COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
_JOB_OPTIONS = ("partition", "account", "qos", "time", "constraint")


@dataclass(frozen=True)
class Slurm:
    """Nodes of a Slurm cluster, of which this computer is a login node or a node of a job.

    Within a job its nodes are used, and nothing is submitted, unless one of the first five
    parameters says what job is wanted.

    Parameters
    ----------
    partition, account, qos, time, constraint
        As sbatch takes them; Slurm's own defaults where they are left out.
    sbatch
        Further options of sbatch, as in ``"--exclusive --mail-type=BEGIN"``.
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    idle_timeout
        Seconds without a run after which a cluster ends, where the user does not say otherwise:
        others wait for its nodes.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    sbatch: str | None = None
    grace: float = 600.0
    idle_timeout: float | None = 3600.0

    counts_hours = True
    name = "slurm"
    cloud = "Slurm"
    python = sys.executable
    """What runs on the nodes: the notebook's own environment, from the shared home."""

    @property
    def default_nodes(self) -> int:
        """All nodes of the notebook's own job, or one of another."""
        return own_nodes() if self._own_job() else 1

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what is not here: Slurm's commands, or as much as is asked of the own job."""
        for command in _COMMANDS:
            if shutil.which(command) is None:
                raise UsageError(
                    f"{command} is not here: run the notebook on a login node of the Slurm cluster."
                )
        if spec.volumes or spec.image.bootstrap or spec.image.apt:
            raise UsageError("nodes of Slurm take neither volumes nor apt nor bootstrap commands.")
        if job := self._own_job():
            event_loop.wait(allocation(job)).check(spec)
        return differences(spec.image)

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Submit a job, and wait in the queue until the agents of all its nodes listen."""
        cluster = RunningCluster(spec, identity, preload, ())
        names = [f"node {number}" for number in range(spec.nodes)]
        shown: Sequence[Credentials | None] = issue_credentials(names) if spec.nodes > 1 else [None]
        return [*await self._start(cluster, shown, self._own_job(), self._chosen(), progress)]

    def machine(self, row: Mapping[str, Any]) -> SlurmMachine:
        """Return the machine that ``row`` describes."""
        return SlurmMachine.from_row(row)

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Submit a further job like the first one, or use more nodes of the own job."""
        first = _node(running.machines[0])
        own = number_of(first.id) if first.is_step else None
        names = [f"node {number}" for number in running.new_numbers]
        alone, *issued = issue_credentials([running.nodes[0].host, *names])
        shown = [each.trusting(running.authority, running.fingerprints) for each in issued]
        machines = await self._start(running, shown, own, first.options, progress)
        return AddedNodes(machines, running.machines, (), alone.authority, alone)

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Give nodes back to Slurm: their job goes on with those that are left, if any are."""
        leaving: dict[str, list[SlurmMachine]] = defaultdict(list)
        for machine in map(_node, machines):
            leaving[machine.id].append(machine)
        await asyncio.gather(*(_release(job, each) for job, each in leaving.items()))

    def own_allocation(self) -> Allocation | None:
        """Return what the notebook's own job has, if nodes are those of that."""
        job = self._own_job()
        return event_loop.wait(allocation(job)) if job else None

    # What Slurm knows of clusters

    def location(self) -> str:
        """Return what the registry keeps: a registry knows of one Slurm."""
        return self.cloud

    async def release_cluster(
        self, identity: str, location: str | None, progress: Progress
    ) -> None:
        """End all jobs of a cluster, or take them back out of the queue."""
        jobs = [each.id for each in await queued_jobs() if each.cluster == identity]
        await asyncio.gather(*map(cancel, jobs))

    async def ended_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return which jobs have ended, as of now."""
        jobs = {machine.id for machine in map(_node, machines)}
        ended = {job for job in jobs if (await job_state(job)).has_ended}
        return [time.time() if _node(each).id in ended else None for each in machines]

    async def list_resources(
        self, everywhere: bool = False
    ) -> tuple[list[CloudResources], list[str]]:
        """Return the clusters of this user that have jobs."""
        found: dict[str, list[QueuedJob]] = defaultdict(list)
        if not is_known() and not everywhere:
            return [], []
        try:
            for each in await queued_jobs():
                found[each.cluster].append(each)
        except SlurmError as error:
            # Its commands may be installed where there is no Slurm.
            return [], [f"the queue of Slurm cannot be seen: {error}"] if is_known() else []
        return [self._described(jobs) for jobs in found.values()], []

    async def release_strays(self, identity: str, location: str, instances: Sequence[str]) -> None:
        """End jobs that a cluster does not know of."""
        await asyncio.gather(*map(cancel, instances))

    async def remove_unused(self) -> list[str]:
        """Do nothing: Slurm keeps nothing but jobs."""
        return []

    def _described(self, jobs: Sequence[QueuedJob]) -> CloudResources:
        first = jobs[0]
        what = format_list([f"job {each.id} ({each.state})" for each in jobs])
        ids = tuple(each.id for each in jobs)
        # On another login node a notebook may wait for a job, for days.
        waits = {each.state for each in jobs} == {"pending"}
        is_ours = first.owner == owner() and not (waits and first.computer != socket.gethostname())
        by = f"you on {first.computer}"
        return CloudResources(first.cluster, first.name, self.cloud, what, is_ours, by, ids)

    # Starting nodes

    def _own_job(self) -> str | None:
        """Return the job to start nodes in, if none is to be submitted."""
        wants_another = self.sbatch or any(getattr(self, name) for name in _JOB_OPTIONS)
        return None if wants_another else own_job()

    def _chosen(self) -> tuple[str, ...]:
        """Return what the user wants of a job, as options of sbatch."""
        named = [(name, getattr(self, name)) for name in _JOB_OPTIONS]
        options = [shlex.quote(f"--{name}={value}") for name, value in named if value]
        return (*options, *([self.sbatch] if self.sbatch else []))

    async def _options(self, spec: ClusterSpec, nodes: int) -> list[str]:
        """Return what the cluster wants of a job for so many nodes, as options of sbatch."""
        wanted = spec.wanted_gpus
        gpus = await resource_of(wanted, self.partition) if wanted else None
        return [shlex.quote(option) for option in job_options(spec, nodes, gpus)]

    async def _start(
        self,
        cluster: RunningCluster,
        shown: Sequence[Credentials | None],
        own_job: str | None,
        chosen: Sequence[str],
        progress: Progress,
    ) -> list[SlurmMachine]:
        """Start an agent for each node that a cluster lacks."""
        nodes = _place(cluster, *await _gpus(cluster.spec, own_job))
        place = own_job or [*await self._options(cluster.spec, len(nodes)), *chosen]
        started = await start_agents(cluster, nodes, shown, self.grace, place, progress)
        return [replace(each, options=tuple(chosen)) for each in started]


def _node(machine: Machine) -> SlurmMachine:
    assert isinstance(machine, SlurmMachine)
    return machine


async def _gpus(spec: ClusterSpec, job: str | None) -> tuple[str | None, int]:
    """Return the GPUs of each node: those that are asked for, or that the job has."""
    if wanted := spec.wanted_gpus:
        return wanted.name, wanted.count
    if job:
        has = await allocation(job)
        return has.gpu and has.gpu.upper(), has.gpus
    return None, 0


def _place(cluster: RunningCluster, gpu: str | None, gpus: int) -> list[Node]:
    """Return the nodes that a cluster lacks, with the next ranks or those of lost nodes."""
    lost = {node.node: node for node in cluster.lost}
    each = cluster.spec.procs_per_node or gpus or 1
    rank = sum(len(node.ranks) for node in [*cluster.nodes, *cluster.lost])
    placed = []
    for number in cluster.new_numbers:
        ranks = lost[number].ranks if number in lost else tuple(range(rank, rank + each))
        rank += 0 if number in lost else each
        placed.append(Node(number, "", "", ranks, gpus, 0 < gpus < each, gpu))
    return placed


async def _release(job: str, leaving: Sequence[SlurmMachine]) -> None:
    """End what is left of agents, and have the job go on without their nodes."""
    await asyncio.gather(*(machine.end_agent() for machine in leaving))
    if leaving[0].is_step or (await job_state(job)).has_ended:
        return  # the allocation is the user's own
    rest = sorted(set(await hosts_of(job)) - {machine.host for machine in leaving})
    if rest:
        await ask(["scontrol", "update", f"JobId={job}", f"NodeList={','.join(rest)}"])
    else:
        await cancel(job)
