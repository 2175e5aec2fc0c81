"""Jobs and their steps: what Slurm says of them, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import count
from typing import TypeVar

from jupyter_sky.providers.slurm.job_state import GONE, JobState
from jupyter_sky.providers.slurm.login import LoginNode, SlurmError

T = TypeVar("T")

_GENTLY = 20  # times that a step is asked to end


async def job_state(at: LoginNode, job: str) -> JobState:
    """Return what the queue says of a job, or of a step; one that Slurm has forgotten has ended.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    if "." in job:
        said = await at.ask(["squeue", "--noheader", f"--steps={job}", "--format=%i"])
        return JobState("RUNNING" if said == job else GONE)
    try:
        said = await at.ask(
            ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%S|%P"]
        )
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        said = ""
    if not said:
        return JobState(GONE)
    state, reason, start, partition = said.splitlines()[0].split("|")
    return JobState(state, reason, "" if start == "N/A" else start, partition)


async def jobs_ahead(at: LoginNode, job: str, partition: str) -> int:
    """Return how many jobs of its partition have more priority than one that waits.

    Sites may hide the jobs of others, which are not counted then.
    """
    listed = ["squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i"]
    waiting = (await at.ask([*listed, f"--partition={partition}"])).split()
    return waiting.index(job) if job in waiting else 0


def number_of(job: str) -> str:
    """Return the number of a job, or that of the job of a step."""
    return job.partition(".")[0]


async def hosts_of(at: LoginNode, job: str) -> list[str]:
    """Return the nodes that a job has now, or the job of a step."""
    said = await at.ask(["squeue", "--noheader", f"--jobs={number_of(job)}", "--format=%N"])
    return (await at.ask(["scontrol", "show", "hostnames", said])).split() if said else []


async def cancel(at: LoginNode, job: str) -> None:
    """Take a job out of the queue, or end it or a step, and wait until nothing of it is left."""
    for attempt in count():
        there = await _try(job_state(at, job))
        if there and there.has_ended:
            return
        if there and there.state != "COMPLETING":
            # Slurm kills a step at once, without time to clean up.
            gently = ["--signal=INT"] if "." in job and attempt < _GENTLY else []
            await _try(at.ask(["scancel", *gently, job]))
        await asyncio.sleep(0.3)


async def _try(asked: Awaitable[T]) -> T | None:
    """Return the answer, or ``None`` while Slurm's controller is away."""
    try:
        return await asked
    except SlurmError:
        return None
