"""The job that the notebook runs in: after salloc, in Open OnDemand or a batch spawner."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.slurm.job_state import JobState
from jupyter_sky.providers.slurm.jobs import fields_of
from jupyter_sky.providers.slurm.login import SlurmError, login_node
from jupyter_sky.providers.slurm.partitions import fits, gpus_of
from jupyter_sky.providers.spec import ClusterSpec

_GOT = re.compile(r"^ *Nodes=.* GRES=(.*)$", re.MULTILINE)
"""What nodes of a job got, in ``scontrol --details show job``: a line for each that differs."""


@dataclass(frozen=True)
class Allocation:
    """The resources of the notebook's job.

    Attributes
    ----------
    job
        Its number.
    nodes
        The number of its nodes.
    gpu, gpus
        The GPUs of each node: Slurm's name for them, if any, and how many.
    """

    job: str
    nodes: int
    gpu: str | None
    gpus: int

    def check(self, spec: ClusterSpec) -> None:
        """Refuse requests for more than the job has.

        Raises
        ------
        UsageError
            With what it has, and how to request a separate job.
        """
        has = f"job {self.job}, in which this notebook runs, has"
        another = "or name a `--partition`, to submit a job"
        if spec.nodes > self.nodes:
            raise UsageError(
                f"{has} {format_count(self.nodes, 'node')}: type at most "
                f"`--nodes {self.nodes}`, {another}."
            )
        wanted = spec.wanted_gpus
        if wanted and not fits(wanted, self.gpu, self.gpus):
            there = f"{self.gpus} × {(self.gpu or 'GPU').upper()}" if self.gpus else "no GPU"
            raise UsageError(f"{has} {there} on each node: ask for that, {another}.")


def own_job() -> str | None:
    """Return the number of the job that this process runs in."""
    return os.environ.get("SLURM_JOB_ID")


def own_nodes() -> int:
    """Return the number of nodes of this process's job; 1 without a job."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))


async def allocation(job: str) -> Allocation:
    """Return the resources of a job.

    Raises
    ------
    SlurmError
        If the controller does not answer, or the job has ended.
    """
    at = login_node(None)
    found = await fields_of(at, job, "%T", "%D", "%b")
    if not found or JobState(found[0]).is_ending:
        raise SlurmError(
            f"job {job}, in which this notebook was started, has ended: name a `--partition`, to "
            "submit a job."
        )
    _, nodes, resources = found
    gpu, gpus = gpus_of(resources)
    if not gpus:
        # They were asked for in another way than for each node, as with --gpus: what it got.
        with contextlib.suppress(SlurmError):  # where only `squeue` is for everybody
            details = await at.ask(["scontrol", "--details", "show", "job", job])
            gpu, gpus = min(map(gpus_of, _GOT.findall(details)), key=_count, default=(None, 0))
    return Allocation(job, int(nodes), gpu, gpus)


def _count(gpus: tuple[str | None, int]) -> int:
    return gpus[1]
