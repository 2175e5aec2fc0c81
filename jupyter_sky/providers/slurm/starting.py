"""Starting agents through Slurm: as a job of their own, or as a step of the notebook's job."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_list
from jupyter_sky.providers.base import Node, Progress
from jupyter_sky.providers.mtls import Credentials
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.slurm.environment import NodeEnvironment, bare
from jupyter_sky.providers.slurm.homes.equip import WaitingNodes, equip
from jupyter_sky.providers.slurm.homes.waiting import wait_command
from jupyter_sky.providers.slurm.job_state import (
    PRIORITY,
    RESOURCES,
    JobState,
    check_can_start,
    in_words,
    refusal_in_words,
)
from jupyter_sky.providers.slurm.jobs import cancel, hosts_of, job_state, jobs_ahead, steps_of
from jupyter_sky.providers.slurm.login import LoginNode, SlurmError, own_environment
from jupyter_sky.providers.slurm.machine import SlurmMachine
from jupyter_sky.providers.slurm.on_node import SPECS, first_grace
from jupyter_sky.providers.slurm.partitions import accounts, own_share
from jupyter_sky.providers.slurm.queue import mark, queued_jobs, submit
from jupyter_sky.providers.slurm.script import (
    OUTPUT,
    WAITS,
    JobRequest,
    batch_script,
    start_step,
    step_beside,
    step_size,
    submit_command,
    waiting_step,
)
from jupyter_sky.providers.slurm.start_folder import StartFolder
from jupyter_sky.providers.spec import Image
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, RankSpec
from jupyter_sky.transport.tasks import shielded

_LOOK_EVERY = 0.3  # seconds
_NO_PYTHON = (
    ": nodes do not have this Python; name one that they have with `%config Sky.python`, a conda "
    "environment with `--conda`, or run the notebook with one in the home that they share"
)
_ANY = -1  # answers that are known: there is nothing to wait for
_PLACE_EVERY = 10  # looks at the job: the list of all jobs may be long
_LONGEST_LOOK = 30.0  # seconds; sites ask their users not to ask more often
_ANSWERED_WITHIN = 1.0  # seconds for what a node says of its failure to be seen
_READY_LOOK = 3.0  # seconds, while its nodes get ready


Completes = Callable[[Image], tuple[Image, tuple[str, ...]]]
"""Returns an image with what the notebook has, and sentences about what nodes do without."""


@dataclass(frozen=True)
class Start:
    """A start of agents.

    Attributes
    ----------
    at
        The login node.
    cluster
        The cluster that they are for.
    nodes
        Its nodes without an address, and what each shows to others; ``None`` for one alone.
    environment
        What they find.
    grace
        Seconds as in `AgentSpec`.
    request
        What the user wants of the job.
    size
        The options of sbatch for its nodes, quoted.
    own_job
        The number of the job to start them in, in place of another one.
    complete
        Completes their image where they turn out to have homes of their own; see `Slurm.complete`.
    python
        The interpreter that the user has named.
    interface
        The network interface that the user has named.
    """

    at: LoginNode
    cluster: RunningCluster
    nodes: Sequence[tuple[Node, Credentials | None]]
    environment: NodeEnvironment
    grace: float
    request: JobRequest
    size: Sequence[str]
    own_job: str | None
    complete: Completes | None = None
    python: str | None = None
    interface: str | None = None

    @property
    def hosts(self) -> list[str]:
        """What Slurm calls the nodes that the cluster has already."""
        return [each.host for each in self.cluster.machines if isinstance(each, SlurmMachine)]

    @property
    def wanted(self) -> str:
        """What makes it, as text: two that are equal here are interchangeable."""
        job = self.own_job, [*self.size], asdict(self.request)
        agents = [asdict(self.agent_spec(node, None)) for node, _ in self.nodes]
        return json.dumps([*job, asdict(self.environment), agents])

    def agent_spec(self, node: Node, credentials: Credentials | None) -> AgentSpec:
        """Return what the agent of a node has to know; it adds what it finds there."""
        there = self.cluster.machines
        return replace(
            self.cluster.agent_spec(self.grace, credentials),
            ranks=tuple(RankSpec(rank) for rank in node.ranks),
            peer=there[0].host if there and isinstance(there[0], SlurmMachine) else None,
            interface=self.interface,
            notices=("file",),
            first_grace=first_grace(self.grace, self.request.container),
            **self.environment.of_the_agent(),
        )


async def start_agents(start: Start, progress: Progress) -> list[SlurmMachine]:
    """Start an agent for each of some nodes: all of them or none."""
    cluster, at = start.cluster, start.at
    job, folder = await _left_behind(start)
    try:
        name = mark(cluster.identity, cluster.spec.name, folder.name)
        if job is None:
            specs = [asdict(start.agent_spec(*each)) for each in start.nodes]
            await folder.write(SPECS, json.dumps({"wanted": start.wanted, "specs": specs}))
        is_shared = start.own_job is not None and await _are_shared(start, start.own_job, folder)
        if job:
            progress(f"job {job} was in the queue already")
        elif start.own_job:
            job = await _start_step(start, start.own_job, name, folder, is_shared)
        else:
            job = await _submit(start, name, folder)
        return await _Wait(job, start, folder, is_shared, progress).agents()
    except BaseException as error:
        if job is not None:
            try:
                await cancel(at, job)
            except SlurmError as left:  # both have to be known
                raise SlurmError(f"{error} {left}".lstrip()) from None
        raise
    finally:
        with contextlib.suppress(SlurmError):
            await folder.remove()


async def _left_behind(start: Start) -> tuple[str | None, StartFolder]:
    """Return the job that another kernel has left in the queue, and its folder, or a new one."""
    at, parent, identity = start.at, start.environment.starts, start.cluster.identity
    if not start.cluster.machines:
        for each in await queued_jobs(at):
            if each.cluster != identity:
                continue
            folder = StartFolder(at, f"{parent}/{each.start}")
            said = await folder.read(SPECS)
            if said and json.loads(said)["wanted"] == start.wanted:
                return each.id, folder
            await cancel(at, each.id)
            await folder.remove()
    return None, await StartFolder.make(at, parent, identity)


async def _submit(start: Start, name: str, folder: StartFolder) -> str:
    """Submit a job, and return its number."""
    waiting = wait_command(folder.name, start.grace)
    found = start.environment
    await folder.write("job.sh", batch_script(start.request, folder.path, found, waiting))
    command = submit_command(start.size, start.request, name, f"{folder.path}/job.sh")
    asked = asyncio.ensure_future(submit(start.at, command, folder.name))
    try:
        return await shielded(asked)
    except asyncio.CancelledError:
        await cancel(start.at, await asked)
        raise
    except SlurmError as error:
        if not (advice := refusal_in_words(str(error))):
            raise
        yours = format_list([f"{each}" for each in await accounts(start.at)])
        listed = f" (yours: {yours})" if yours and "of yours" in advice else ""
        raise SlurmError(f"{str(error).rstrip('.')}: {advice}{listed}") from None


async def _start_step(
    start: Start, job: str, name: str, folder: StartFolder, is_shared: bool
) -> str:
    """Start a step of a job, which goes on when this process ends, and return its id."""
    found, nodes = start.environment, [node for node, _ in start.nodes]
    size = step_size(len(nodes), nodes[0].accelerators, start.hosts)
    if is_shared:
        command = start_step(job, size, start.request, name, folder.path, found)
    else:
        command = waiting_step(job, size, name, wait_command(folder.name, start.grace))
    with Path(folder.path, OUTPUT).open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**own_environment(), "PYTHONPATH": found.code},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True, name="sky-step").start()
    try:
        while process.returncode is None:
            for each in await queued_jobs(start.at):
                if each.start == folder.name:
                    return each.id
            await asyncio.sleep(_LOOK_EVERY)
    except BaseException:
        process.terminate()
        raise
    raise SlurmError(f"no step of job {job} could be started{await folder.last_line()}")


def seconds_of_look(waited: float) -> float:
    """Return the seconds between two questions about a job that has waited for so long.

    Where nodes share the home, it is noticed meanwhile that they are there.
    """
    return min(_LONGEST_LOOK, max(2 * _LOOK_EVERY, waited / 20))


class _Wait:
    """The wait for the agents of a job, without an end: how long a queue takes is for the user.

    Slurm and the folder of the start are asked in turns. What Slurm does not answer is asked again.
    With ``is_shared``, all nodes of the own job see that folder.
    """

    def __init__(
        self,
        job: str,
        start: Start,
        folder: StartFolder,
        is_shared: bool,
        progress: Progress,
    ) -> None:
        self._job = job
        self._start = start
        self._folder = folder
        self._is_shared = is_shared
        self._progress = progress
        self._state, self._since = JobState(""), time.monotonic()
        self._ahead = 0
        self._share = ""
        self._has_run = False
        self._are_homes_known = False
        self._answers: Mapping[int, Mapping[str, Any]] = {}

    async def agents(self) -> list[SlurmMachine]:
        """Return the machines when all agents listen.

        Raises
        ------
        SkyError
            If one does not start, or the job ends before.
        """
        for look in count():
            try:
                there = await self._ask_slurm(look)
                # After that: what a job has said before it ended is not missed.
                failed = await self._ask_nodes(there)
            except SlurmError as error:
                self._progress(f"job {self._job}: {error}, asking again")
                await asyncio.sleep(_LOOK_EVERY)
                continue
            for task, answer in self._answers.items():
                if "failed" in answer:
                    node = self._start.nodes[task][0].node
                    raise SkyError(f"job {self._job}, node {node}: {answer['failed']}")
            if len(self._answers) == len(self._start.nodes):
                return [
                    _machine(self._job, self._start, answer, task)
                    for task, answer in sorted(self._answers.items())
                ]
            if there.has_ended or failed:
                raise SkyError(await self._trouble(there, failed))
        raise AssertionError("unreachable")

    async def _ask_slurm(self, look: int) -> JobState:
        """Return and show the state of the job; refuse one that would wait for ever."""
        there, before = await job_state(self._start.at, self._job), self._state
        if there.reason == PRIORITY and look % _PLACE_EVERY <= 1:
            self._ahead = await jobs_ahead(self._start.at, self._job, there.partition)
        if there.reason == RESOURCES and look % _PLACE_EVERY <= 1:
            own, more = {*self._start.hosts}, len(self._start.nodes)
            self._share = await own_share(self._start.at, there.partition, own, more)
        self._progress(in_words(self._job, there, self._ahead, self._share))
        if there.reason == before.reason:  # the first one is a guess
            check_can_start(self._job, there)
        if there.state != before.state:
            self._since = time.monotonic()
        self._state = there
        self._has_run = self._has_run or not (there.has_ended or there.state == "PENDING")
        return there

    async def _ask_nodes(self, there: JobState) -> str:
        """Wait a while for more answers, and return what srun says of a task that has failed."""
        if there.state == "RUNNING" and not self._are_homes_known:
            waits, is_told = await self._waits()
            if waits:
                await _equip(self._job, self._start, self._folder, self._progress)
            self._are_homes_known = is_told
        waited = time.monotonic() - self._since
        seconds = _READY_LOOK if self._are_homes_known else seconds_of_look(waited)
        known = _ANY if there.has_ended else len(self._answers)
        said = await self._folder.answers(known, seconds)
        if said.failed and not there.has_ended:
            # Where homes are shared over a network, its answer may be seen later than that.
            await asyncio.sleep(_ANSWERED_WITHIN)
            said = await self._folder.answers(_ANY)
        self._answers = said.nodes
        return said.failed

    async def _waits(self) -> tuple[bool, bool]:
        """Return whether nodes wait to be made ready, and whether that is known already."""
        if self._start.own_job is None:
            names = await steps_of(self._start.at, self._job)
            return WAITS in names, bool(names)
        return not self._is_shared, True

    async def _trouble(self, there: JobState, failed: str) -> str:
        """Return why the agents of a job do not start."""
        if there.state == "CANCELLED" and not self._has_run:
            return f"job {self._job} was cancelled while it waited, by somebody or by Slurm"
        last = await self._folder.last_line()
        if f"{self._start.environment.python}: No such file" in last:
            last += _NO_PYTHON
        ended = f" ended before its nodes were ready: {there.state}"
        return f"job {self._job}{ended if there.has_ended else f', {failed}'}{last}"


def _machine(job: str, start: Start, said: Mapping[str, Any], task: int) -> SlurmMachine:
    known = {name: said[name] for name in ("addr", "interface", "port", "fingerprint")}
    node = replace(start.nodes[task][0], name=said["host"], **known)
    found = start.environment
    return SlurmMachine(
        id=job,
        host=said["host"],
        folder=said["folder"],
        keeper=said["keeper"],
        nodes=(node,),
        python=said.get("python", found.python),
        code=said.get("code", found.code),
        login=start.at.host,
        request=start.request,
        has_own_home="code" in said,
    )


# Nodes with homes of their own


async def _are_shared(start: Start, job: str, folder: StartFolder) -> bool:
    """Return whether all nodes of a job see a folder of this one."""
    hosts = await hosts_of(start.at, job)
    see = ["test", "-e", f"{folder.path}/{SPECS}"]
    if hosts == [os.environ.get("SLURMD_NODENAME")]:
        return True
    try:
        await start.at.ask([*step_beside(job, ",".join(hosts), len(hosts)), *see])
    except SlurmError:
        return False
    return True


async def _equip(job: str, start: Start, folder: StartFolder, progress: Progress) -> None:
    cluster = start.cluster
    left_out: tuple[str, ...] = ()
    if start.request.has_python:
        cluster = bare(cluster)
    elif start.python is None and start.complete is not None:
        image, left_out = await asyncio.to_thread(start.complete, cluster.spec.image)
        cluster = replace(cluster, spec=replace(cluster.spec, image=image))
    progress(f"job {job} runs: its nodes have homes of their own, and are made ready")
    specs = json.loads(await folder.read(SPECS))["specs"]
    nodes = WaitingNodes(job, folder, cluster, start.python, start.request, specs)
    await equip(nodes, [*(await folder.answers(_ANY)).nodes], left_out, progress)
