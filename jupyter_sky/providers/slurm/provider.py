"""The Slurm provider: nodes are those of jobs, or of the job that the notebook runs in."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_duration, format_list
from jupyter_sky.providers.base import Machine, Node, Progress
from jupyter_sky.providers.cloud import CloudResources
from jupyter_sky.providers.local.requirements import differences
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.slurm.allocation import Allocation, allocation, own_job, own_nodes
from jupyter_sky.providers.slurm.environment import environment
from jupyter_sky.providers.slurm.jobs import cancel, end_of, hosts_of, job_state, number_of
from jupyter_sky.providers.slurm.login import LoginNode, SlurmError, login_node, missing
from jupyter_sky.providers.slurm.machine import SlurmMachine
from jupyter_sky.providers.slurm.on_node import first_grace
from jupyter_sky.providers.slurm.partitions import resource_of
from jupyter_sky.providers.slurm.queue import (
    QueuedJob,
    known_logins,
    owner,
    queued_jobs,
    remember_login,
)
from jupyter_sky.providers.slurm.script import JobRequest, size_options
from jupyter_sky.providers.slurm.start_folder import remove_left_behind
from jupyter_sky.providers.slurm.starting import Completes, Start, start_agents
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.provider import SSH
from jupyter_sky.transport import event_loop

_COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
_OLDEST = (20, 11)
_AT = " at "
_JOB_OPTIONS = ("partition", "account", "qos", "time", "constraint")


@dataclass(frozen=True)
class Slurm:
    """Nodes of a Slurm cluster; this computer is a login node, a node of a job, or elsewhere.

    Within a job, that job's nodes are used and nothing is submitted, unless a parameter describes
    another job.

    Parameters
    ----------
    partition, account, qos, time, constraint
        As for sbatch; Slurm's own defaults if they are omitted.
    gres
        Resources of each node besides its GPUs, as in ``"shard:2"``.
    exclusive
        Whether its nodes are not shared with other jobs.
    sbatch
        Further options of sbatch, as in ``"--mail-type=BEGIN"``.
    login
        A login node reachable over SSH, as ``[USER@]HOST[:PORT]``, for a notebook elsewhere. An
        environment for nodes is made there, in the shared home.
    modules
        Environment modules that nodes load, as in ``("cuda/12.4", "gcc")``.
    conda
        A conda environment on the nodes for ranks, by its name or folder.
    container
        An Apptainer image for ranks: a file on the nodes, or an address.
    python
        An interpreter on the nodes with the packages that ranks need, in place of the notebook's
        own or a new environment.
    interface
        The network interface for traffic between nodes, like ``"ib0"``; by default, the one that
        routes to the head.
    grace
        Seconds after which nodes end if no notebook is connected and nothing runs.
    idle_timeout
        Seconds without a run after which a cluster ends by default, since others wait for its
        nodes.
    complete
        Returns an image with the notebook's packages, for nodes that turn out to have their own
        homes; set by the code that makes the provider for a notebook.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    gres: str | None = None
    exclusive: bool = False
    sbatch: str | None = None
    login: str | None = None
    modules: tuple[str, ...] = ()
    conda: str | None = None
    container: str | None = None
    python: str | None = None
    interface: str | None = None
    grace: float = 600.0
    idle_timeout: float | None = 3600.0
    complete: Completes | None = field(default=None, repr=False, compare=False)

    counts_hours = True
    name = "slurm"
    cloud = "Slurm"

    @property
    def default_nodes(self) -> int:
        """All nodes of the notebook's own job, or one of a new job."""
        return own_nodes() if self._own_job() else 1

    @property
    def makes_environments(self) -> bool:
        """Whether nodes get an environment, since a notebook elsewhere cannot share its own."""
        return bool(self.login) and self.python is None and not self._request().has_python

    @property
    def gives_any_nodes(self) -> bool:
        """Whether nodes come from the queue, and are not those of the notebook's own job."""
        return self._own_job() is None

    def check(self, spec: ClusterSpec, preload: Sequence[str], present: int = 0) -> tuple[str, ...]:
        """Refuse if Slurm's commands are missing, or the own job has too little."""
        if spec.volumes or spec.image.bootstrap or spec.image.apt:
            raise UsageError("nodes of Slurm take neither volumes nor apt nor bootstrap commands.")
        if self.login:
            warnings = SSH((self.login,), self.python).check(replace(spec, nodes=1), preload)
            self._ask_for_slurm()
            return warnings
        for command in _COMMANDS:
            if shutil.which(command) is None:
                raise UsageError(missing(command))
        self._ask_for_slurm()
        if spec.image.includes:
            raise UsageError("nodes have the files of this computer: leave --include out.")
        if job := self._own_job():
            event_loop.wait(allocation(job)).check(spec)
        return () if self._request().has_python else differences(spec.image)

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Submit a job, and wait in the queue until the agents of all its nodes listen."""
        new = RunningCluster(spec, identity, preload)
        started = await self._start(new, self._own_job(), self._request(), progress)
        return [*started.machines]

    def machine(self, row: Mapping[str, Any]) -> SlurmMachine:
        """Return the machine that ``row`` describes."""
        return SlurmMachine.from_row(row)

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Submit another job like the first one, or use more nodes of the own job."""
        first = _node(running.machines[0])
        own = number_of(first.id) if first.is_step else None
        there = replace(self, login=first.login, partition=first.request.partition)
        return await there._start(running, own, first.request, progress)

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Return nodes to Slurm; their job continues with the remaining ones, if any."""
        leaving: dict[str, list[SlurmMachine]] = defaultdict(list)
        for machine in map(_node, machines):
            leaving[machine.id].append(machine)
        await asyncio.gather(*(_release(job, each) for job, each in leaving.items()))

    def own_allocation(self) -> Allocation | None:
        """Return the resources of the notebook's own job, if its nodes are used."""
        job = self._own_job()
        return event_loop.wait(allocation(job)) if job else None

    # Clusters in Slurm

    def location(self) -> str:
        """Return which Slurm it is: this computer's, or a login node's."""
        return f"{self.cloud}{_AT}{self.login}" if self.login else self.cloud

    async def release_cluster(
        self, identity: str, location: str | None, progress: Progress
    ) -> None:
        """Cancel all jobs of a cluster."""
        at = _login_of(location)
        jobs = [each.id for each in await queued_jobs(at) if each.cluster == identity]
        await asyncio.gather(*(cancel(at, job, progress) for job in jobs))
        await remove_left_behind(at, identity)

    def left_behind(self, name: str, machines: Sequence[Machine], location: str | None) -> str:
        """Return what may be in the queue of a Slurm that does not answer."""
        jobs = dict.fromkeys(machine.id for machine in map(_node, machines))
        end = shlex.join(["scancel", *(jobs or ["--me", f"--name=sky-{name}"])])
        what = format_list([f"job {each}" for each in jobs]) if jobs else "its job"
        grace = self.grace if jobs else first_grace(self.grace, self.container)
        return (
            f"{what} may still be there in {location or self.cloud}: `{end}` ends it, and its "
            f"nodes end by themselves {format_duration(grace)} after they come, unless they "
            "run something"
        )

    async def is_queued(self, identity: str) -> bool:
        """Return whether a cluster has a job."""
        jobs = await queued_jobs(login_node(self.login))
        return identity in {each.cluster for each in jobs}

    async def ended_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when jobs have ended, as far as Slurm still knows."""
        named = [(machine.login, machine.id) for machine in map(_node, machines)]
        ended = {each: await end_of(login_node(each[0]), each[1]) for each in dict.fromkeys(named)}
        return [ended[each] for each in named]

    async def list_resources(
        self, everywhere: bool = False
    ) -> tuple[list[CloudResources], list[str]]:
        """Return the clusters of this user that have jobs."""
        found: list[CloudResources] = []
        unseen: list[str] = []
        logins = known_logins()
        for host in dict.fromkeys([*logins, ""] if everywhere else logins):
            jobs: dict[str, list[QueuedJob]] = defaultdict(list)
            place = replace(self, login=host).location()
            try:
                for each in await queued_jobs(login_node(host)):
                    jobs[each.cluster].append(each)
            except SlurmError as error:
                # Its commands may be installed without a running Slurm.
                if host in logins:
                    unseen.append(f"the queue of {place} cannot be seen: {error}")
            found += [_described(each, place) for each in jobs.values()]
        return found, unseen

    async def release_strays(self, identity: str, location: str, instances: Sequence[str]) -> None:
        """End jobs that a cluster does not know of."""
        await asyncio.gather(*(cancel(_login_of(location), each) for each in instances))

    async def remove_unused(self) -> list[str]:
        """Do nothing: Slurm has nothing but jobs."""
        return []

    # Starting nodes

    def _ask_for_slurm(self) -> None:
        """Check that Slurm answers, before recording what only Slurm could report as gone."""
        said = event_loop.wait(login_node(self.login).ask(["sbatch", "--version"]))
        found = re.search(r"^slurm\D* (\d+)\.(\d+)", said, re.MULTILINE)
        if found and (int(found[1]), int(found[2])) < _OLDEST:
            raise UsageError(
                f"Slurm {found[1]}.{found[2]} is too old: nodes are reached with steps beside "
                "others (`srun --overlap`), which Slurm has since 20.11."
            )

    def _own_job(self) -> str | None:
        """Return the job to start nodes in, unless a new one is to be submitted."""
        wants_another = self.login or self._request().options or self.gres
        return None if wants_another else own_job()

    def _request(self) -> JobRequest:
        """Return the user's wishes for a job."""
        named = [(name, getattr(self, name)) for name in _JOB_OPTIONS]
        options = [shlex.quote(f"--{name}={value}") for name, value in named if value]
        options += ["--exclusive"] if self.exclusive else []
        options += [self.sbatch] if self.sbatch else []
        return JobRequest(
            options=tuple(options),
            modules=tuple(self.modules),
            partition=self.partition,
            gres=self.gres,
            conda=self.conda,
            container=self.container,
        )

    async def _start(
        self,
        cluster: RunningCluster,
        own_job: str | None,
        request: JobRequest,
        progress: Progress,
    ) -> AddedNodes:
        """Start an agent for each missing node of a cluster."""
        at, spec = login_node(self.login), cluster.spec
        shown, alone = cluster.issue_credentials([f"node {each}" for each in cluster.new_numbers])
        remember_login(at.host)
        nodes = _place(cluster, *await _gpus(spec, own_job))
        wanted = spec.wanted_gpus
        gpus = await resource_of(at, wanted, self.partition) if wanted and not own_job else None
        start = Start(
            at=at,
            cluster=cluster,
            nodes=list(zip(nodes, shown, strict=True)),
            environment=await environment(at, cluster, self.python, request.has_python, progress),
            grace=self.grace,
            request=request,
            size=size_options(spec, len(nodes), ",".join(filter(None, [gpus, request.gres]))),
            own_job=own_job,
            complete=self.complete,
            python=self.python,
            interface=self.interface,
        )
        machines = await start_agents(start, progress)
        return AddedNodes(machines, cluster.machines, credentials=alone)


def _login_of(location: str | None) -> LoginNode:
    return login_node((location or "").partition(_AT)[2])


def _described(jobs: Sequence[QueuedJob], place: str) -> CloudResources:
    first = jobs[0]
    what = format_list([f"job {each.id} ({each.state})" for each in jobs])
    ids = tuple(each.id for each in jobs)
    # On another login node, a notebook may be waiting for a job, for days.
    waits = {each.state for each in jobs} == {"pending"}
    is_ours = first.owner == owner() and not (waits and first.computer != socket.gethostname())
    by = f"you on {first.computer}"
    return CloudResources(first.cluster, first.name, place, what, is_ours, by, ids)


def _node(machine: Machine) -> SlurmMachine:
    assert isinstance(machine, SlurmMachine)
    return machine


async def _gpus(spec: ClusterSpec, job: str | None) -> tuple[str | None, int]:
    """Return the GPUs of each node: the requested ones, or those of the job."""
    if wanted := spec.wanted_gpus:
        return wanted.name, wanted.count
    if job:
        has = await allocation(job)
        return has.gpu and has.gpu.upper(), has.gpus
    return None, 0


def _place(cluster: RunningCluster, gpu: str | None, gpus: int) -> list[Node]:
    """Return the missing nodes of a cluster, with the next ranks or those of lost nodes."""
    each, numbers = cluster.spec.procs_per_node or gpus or 1, cluster.new_numbers
    return [
        Node(number, "", "", ranks, gpus, 0 < gpus < each, gpu)
        for number, ranks in zip(numbers, cluster.new_ranks(each for _ in numbers), strict=True)
    ]


async def _release(job: str, leaving: Sequence[SlurmMachine]) -> None:
    """End the rest of agents, and let the job continue without their nodes."""
    at = login_node(leaving[0].login)
    await asyncio.gather(*(machine.end_agent() for machine in leaving))
    if leaving[0].is_step or (await job_state(at, job)).has_ended:
        return  # the allocation belongs to the user
    rest = sorted(set(await hosts_of(at, job)) - {machine.host for machine in leaving})
    if rest:
        await at.ask(["scontrol", "update", f"JobId={job}", f"NodeList={','.join(rest)}"])
    else:
        await cancel(at, job)
