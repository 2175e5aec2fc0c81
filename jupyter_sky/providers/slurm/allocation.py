"""The job that the notebook runs in, as after salloc, in Open OnDemand or a batch spawner."""

from __future__ import annotations

import os
from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.slurm.login import login_node
from jupyter_sky.providers.slurm.partitions import fits, gpus_of
from jupyter_sky.providers.spec import ClusterSpec


@dataclass(frozen=True)
class Allocation:
    """What the job of the notebook has.

    Attributes
    ----------
    job
        Its number.
    nodes
        How many it has.
    gpu, gpus
        The GPUs of each: what Slurm calls them, if it has a name for them, and how many.
    """

    job: str
    nodes: int
    gpu: str | None
    gpus: int

    def check(self, spec: ClusterSpec) -> None:
        """Refuse more than the job has.

        Raises
        ------
        UsageError
            With what it has, and how a job of its own is asked for.
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
    """Return how many nodes the job has that this process runs in; 1 without a job."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))


async def allocation(job: str) -> Allocation:
    """Return what a job has.

    Raises
    ------
    SlurmError
        When the controller does not answer, or the job has ended.
    """
    said = await login_node(None).ask(["squeue", "--noheader", f"--jobs={job}", "--format=%D|%b"])
    nodes, _, resources = said.partition("|")
    gpu, gpus = gpus_of(resources)
    return Allocation(job, int(nodes), gpu, gpus)
