"""Jobs and their steps: asking for their states, and ending them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from jupyter_sky.formatting import format_duration
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.slurm.job_state import GONE, JobState
from jupyter_sky.providers.slurm.login import LoginNode, SlurmError, rows
from jupyter_sky.transport.tasks import shielded

T = TypeVar("T")

_GENTLY = 6.0  # seconds for which a step may end gracefully
_COMPLETES_WITHIN = 60.0  # seconds after which a job that Slurm is ending counts as ended
_ENDS_WITHIN = 300.0  # seconds after which one that does not end is given up
_FIRST_PAUSE, _LONGEST_PAUSE = 0.3, 5.0  # seconds between two looks at it
_KEPT = 3.0  # seconds for which an answer is cached


async def job_state(at: LoginNode, job: str) -> JobState:
    """Return the state of a job or a step; one that Slurm has forgotten has ended.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    if "." in job:
        said = await at.ask(["squeue", "--noheader", f"--steps={job}", "--format=%i"])
        return JobState("RUNNING" if job in said.splitlines() else GONE)
    found = await fields_of(at, job, "%T", "%r", "%S", "%P")
    if not found:
        return JobState(GONE)
    state, reason, start, partition = found
    return JobState(state, reason, "" if start == "N/A" else start, partition)


async def fields_of(at: LoginNode, job: str, *fields: str) -> list[str]:
    """Return fields of a job, as squeue's ``--format`` names them; none if Slurm has forgotten it.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    listed = ["squeue", "--noheader", "--states=all", f"--jobs={job}"]
    try:
        found = rows(await at.ask([*listed, f"--format={'|'.join(fields)}"]), len(fields))
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        found = []
    return found[0] if found else []


async def end_of(at: LoginNode, job: str) -> float | None:
    """Return when a job has ended, in seconds since the epoch; ``None`` if it has not.

    If Slurm has forgotten it, or tells the time of another computer, that is infinite.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    there = await job_state(at, job)
    if not there.has_ended:
        return None
    if at.host or there.state == GONE:
        return math.inf
    asked = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%e"]
    try:
        return datetime.fromisoformat(await at.ask(asked)).timestamp()
    except (SlurmError, ValueError):
        return math.inf


@dataclass(frozen=True)
class JobNow:
    """Slurm's latest answer about a job.

    Attributes
    ----------
    job
        The job, or a step of one.
    state
        Its state.
    hosts
        Its nodes.
    """

    job: str
    state: JobState
    hosts: tuple[str, ...]

    @property
    def end(self) -> str:
        """A description of how it ended."""
        return f"job {self.job} has ended ({self.state.state})"


async def job_now(at: LoginNode, job: str) -> JobNow:
    """Return Slurm's answer about a job, at most some seconds old.

    If hundreds of connections break at once, Slurm is asked only once.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    key = at.host, job
    since, asked = _asked.get(key, (0.0, None))
    now = time.monotonic()
    if asked is None or asked.cancelled() or (asked.done() and now - since > _KEPT):
        asked = asyncio.ensure_future(_ask(at, job))
        _asked[key] = now, asked
    # It continues for the others if one of the waiting tasks is cancelled.
    return await shielded(asked)


def known_end(login: str, job: str) -> str:
    """Return how a job ended, if that is known without asking; empty otherwise."""
    _, asked = _asked.get((login, job), (0.0, None))
    if asked is None or not asked.done() or asked.cancelled() or asked.exception():
        return ""
    there = asked.result()
    return there.end if there.state.has_ended else ""


async def _ask(at: LoginNode, job: str) -> JobNow:
    there = await job_state(at, job)
    hosts = [] if there.is_ending else await hosts_of(at, job)
    return JobNow(job, there, tuple(hosts))


_asked: dict[tuple[str, str], tuple[float, asyncio.Task[JobNow]]] = {}


async def jobs_ahead(at: LoginNode, job: str, partition: str) -> int:
    """Return how many jobs of its partition have a higher priority than a waiting job.

    Sites may hide the jobs of other users, which then are not counted.
    """
    listed = ["squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i"]
    waiting = (await at.ask([*listed, f"--partition={partition}"])).split()
    return waiting.index(job) if job in waiting else 0


async def steps_of(at: LoginNode, job: str) -> list[str]:
    """Return the names of a job's running steps."""
    said = await at.ask(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j"])
    # Slurm also lists the script itself, and its step for external connections.
    return [name for step, name in rows(said, 2) if step.rpartition(".")[2].isdecimal()]


async def addresses_of(at: LoginNode, hosts: Sequence[str]) -> dict[str, str]:
    """Return the addresses of nodes for each other."""
    shown = ["scontrol", "--oneliner", "show", "node", ",".join(hosts)]
    found = {}
    for line in (await at.ask(shown)).splitlines():
        fields = dict(each.split("=", 1) for each in line.split() if "=" in each)
        found[fields["NodeName"]] = fields["NodeAddr"]
    return found


def number_of(job: str) -> str:
    """Return the number of a job, or that of the job of a step."""
    return job.partition(".")[0]


async def hosts_of(at: LoginNode, job: str) -> list[str]:
    """Return the nodes that a job has now, or the job of a step."""
    return await _hosts(at, f"--jobs={number_of(job)}")


async def own_hosts_of(at: LoginNode, job: str) -> list[str]:
    """Return the nodes that a job has now, or a step of it, alone."""
    return await (_hosts(at, f"--steps={job}") if "." in job else hosts_of(at, job))


async def _hosts(at: LoginNode, *of: str) -> list[str]:
    found = rows(await at.ask(["squeue", "--noheader", *of, "--format=%N|"]), 2)
    names = ",".join(nodes for nodes, _ in found)
    return (await at.ask(["scontrol", "show", "hostnames", names])).split() if names else []


async def cancel(at: LoginNode, job: str, progress: Progress = lambda text: None) -> None:
    """Cancel a job or a step, and wait until nothing of it is left.

    Where a node cannot kill a process or its epilog hangs, a job completes for hours. Nobody waits
    for that: Slurm ends it, and nothing of it can be used any more.

    Raises
    ------
    SlurmError
        If it does not end, or Slurm does not answer for minutes.
    """
    pause = _FIRST_PAUSE
    began = before_its_end = time.monotonic()
    while True:
        there = await _try(job_state(at, job))
        now = time.monotonic()
        if there and there.is_ending:
            if there.has_ended or now - before_its_end > _COMPLETES_WITHIN:
                return
        elif there:
            before_its_end = now
            # Slurm kills a step at once, without time to clean up.
            gently = ["--signal=INT"] if "." in job and now - began < _GENTLY else []
            await _try(at.ask(["scancel", *gently, job]))
        if now - began > _ENDS_WITHIN:
            minutes = format_duration(_ENDS_WITHIN)
            raise SlurmError(f"job {job} is still there after {minutes}: `scancel {job}` ends it.")
        await asyncio.sleep(pause)
        if pause < _LONGEST_PAUSE <= 1.2 * pause:  # it takes longer than usual
            progress(f"waiting for the end of job {job}")
        pause = min(1.2 * pause, _LONGEST_PAUSE)


async def _try(asked: Awaitable[T]) -> T | None:
    """Return the answer, or ``None`` while Slurm's controller is away."""
    try:
        return await asked
    except SlurmError:
        return None
