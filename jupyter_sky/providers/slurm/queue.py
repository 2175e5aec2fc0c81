"""The jobs of clusters in Slurm's queue, and the mark by which they are found.

The mark tells whose a job is, even if everything that the notebook knew about it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home, private_opener, text_made_once
from jupyter_sky.providers.slurm.login import LoginNode, SlurmError, rows

_MARK = "jupyter_sky"

_TAKEN_WITHIN = 15.0  # seconds for a job to be in the queue whose submission was not answered
_LOOK_EVERY = 0.5  # seconds
_LOST_ANSWERS = (
    "timed out",
    "Zero Bytes were transmitted",
    "cannot be reached",
    "said nothing for",
)
"""What is said where a busy Slurm may have taken a job, or the connection broke meanwhile."""


@dataclass(frozen=True)
class QueuedJob:
    """A job of a cluster, or a step of the job that its notebook runs in.

    Attributes
    ----------
    id
        Slurm's id of it, like ``"12"`` or ``"12.3"``.
    cluster, name
        The cluster's id and name.
    owner
        The id of its registry.
    computer
        The computer of the notebook that requested it.
    start
        The start of nodes that it belongs to.
    state
        In lower case, like ``"pending"``.
    """

    id: str
    cluster: str
    name: str
    owner: str
    computer: str
    start: str
    state: str


def mark(cluster: str, name: str, start: str) -> str:
    """Return the mark for a job of a cluster."""
    return f"{_MARK}:{cluster}:{name}:{owner()}:{socket.gethostname()}:{start}"


def owner() -> str:
    """Return the id of this registry: another one may belong to the same user."""
    path = home() / "slurm" / "owner"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return text_made_once(path, uuid.uuid4().hex[:12])


def remember_login(host: str) -> None:
    """Record that clusters were asked for at a login node; empty for this computer.

    Raises
    ------
    SkyError
        When it cannot be recorded.
    """
    try:
        owner()
        if host not in known_logins():
            with open(_logins(), "a", opener=private_opener) as file:
                file.write(f"{host}\n")
    except OSError as error:
        raise SkyError(f"{home()} cannot be written to: {error.strerror}.") from None


def known_logins() -> list[str]:
    """Return the login nodes that this registry has used for clusters."""
    try:
        return _logins().read_text().splitlines()
    except FileNotFoundError:
        return []


def _logins() -> Path:
    return home() / "slurm" / "logins"


async def queued_jobs(at: LoginNode) -> list[QueuedJob]:
    """Return the jobs of all clusters of this user; none if there is no Slurm here.

    Raises
    ------
    SlurmError
        When the controller does not answer.
    """
    if not at.host and shutil.which("squeue") is None:
        return []
    own = ["squeue", "--me", "--noheader"]
    jobs = await at.ask([*own, "--format=%i|%T|%k"])
    steps = await at.ask([*own, "--steps", "--format=%i|RUNNING|%j"])
    found = []
    for job, state, marked in [*rows(jobs, 3), *rows(steps, 3)]:
        match marked.split(":"):
            case [maker, cluster, name, whose, computer, start] if maker == _MARK:
                about = (cluster, name, whose, computer, start)
                found.append(QueuedJob(job, *about, state.lower()))
    return found


async def submit(at: LoginNode, command: Sequence[str], start: str) -> str:
    """Submit a job of a start, and return its number, also where Slurm's answer is lost.

    Raises
    ------
    SlurmError
        If Slurm does not take it.
    """
    try:
        return _number(await at.ask(command))
    except SlurmError as error:
        if not any(each in str(error) for each in _LOST_ANSWERS):
            raise
        until = time.monotonic() + _TAKEN_WITHIN
        while time.monotonic() < until:
            with contextlib.suppress(SlurmError):
                for each in await queued_jobs(at):
                    if each.start == start:
                        return each.id
            await asyncio.sleep(_LOOK_EVERY)
        raise


def _number(said: str) -> str:
    """Return a job's number from what sbatch has printed, and what a site lets it print besides."""
    found = re.findall(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?$", said, re.MULTILINE)
    if not found:
        raise SlurmError(f"sbatch has not said the number of the job, but: {said or 'nothing'}")
    return str(found[-1])
