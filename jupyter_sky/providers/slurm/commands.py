"""Slurm's commands, and what they say."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from jupyter_sky.errors import SkyError, UsageError

T = TypeVar("T")

_GENTLY = 20  # times that a step is asked to end

GONE = "GONE"
"""The state of what Slurm knows nothing of any more."""

_ENDED = {GONE, "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_ENDED |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}


class SlurmError(SkyError):
    """A command of Slurm's failed; the text is its own."""


@dataclass(frozen=True)
class JobState:
    """What the queue says of a job.

    Attributes
    ----------
    state
        Slurm's name of it, like ``"PENDING"``.
    reason
        Why it is in that state, as Slurm calls it.
    start
        When it is expected to start, or has started; empty if that is not known.
    """

    state: str
    reason: str = ""
    start: str = ""

    @property
    def is_ending(self) -> bool:
        """Whether Slurm ends it now, or has ended it."""
        return self.has_ended or self.state == "COMPLETING"

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, and will not."""
        return self.state in _ENDED


def own_environment() -> dict[str, str]:
    """Return the environment without what Slurm has said of a job that this process is in."""
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
    }


async def ask(command: Sequence[str]) -> str:
    """Run a command of Slurm's, and return what it prints.

    Raises
    ------
    UsageError
        When it is not there.
    SlurmError
        When it fails, with what it wrote.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=own_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        raise UsageError(
            f"{command[0]} is not here: run the notebook on a login node of the Slurm cluster."
        ) from None
    # Not ended when the caller is cancelled: nobody would hear the number of a job it submits.
    said, wrong = await asyncio.shield(asyncio.ensure_future(process.communicate()))
    if process.returncode:
        lines = wrong.decode(errors="replace").splitlines()
        own = [line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in lines]
        raise SlurmError(f"Slurm says: {'; '.join(own)}")
    return said.decode(errors="replace").strip()


async def job_state(job: str) -> JobState:
    """Return what the queue says of a job, or of a step; one that Slurm has forgotten has ended.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    if "." in job:
        said = await ask(["squeue", "--noheader", f"--steps={job}", "--format=%i"])
        return JobState("RUNNING" if said == job else GONE)
    try:
        said = await ask(
            ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%S"]
        )
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        said = ""
    if not said:
        return JobState(GONE)
    state, reason, start = said.splitlines()[0].split("|")
    return JobState(state, reason, "" if start == "N/A" else start)


def number_of(job: str) -> str:
    """Return the number of a job, or that of the job of a step."""
    return job.partition(".")[0]


async def hosts_of(job: str) -> list[str]:
    """Return the nodes that a job has now, or the job of a step."""
    said = await ask(["squeue", "--noheader", f"--jobs={number_of(job)}", "--format=%N"])
    return (await ask(["scontrol", "show", "hostnames", said])).split() if said else []


async def cancel(job: str) -> None:
    """Take a job out of the queue, or end it or a step, and wait until nothing of it is left."""
    for attempt in count():
        there = await _try(job_state(job))
        if there and there.has_ended:
            return
        if there and there.state != "COMPLETING":
            # Slurm kills a step at once, without time to clean up.
            gently = ["--signal=INT"] if "." in job and attempt < _GENTLY else []
            await _try(ask(["scancel", *gently, job]))
        await asyncio.sleep(0.3)


async def _try(asked: Awaitable[T]) -> T | None:
    """Return the answer, or ``None`` while Slurm's controller is away."""
    try:
        return await asked
    except SlurmError:
        return None
