"""What partitions a Slurm cluster has, what is free in them now, and whether it answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.slurm.commands import ask
from jupyter_sky.transport import event_loop

_GPU = re.compile(r"gpu:(?:([A-Za-z][\w.-]*):)?(\d+)")


@dataclass(frozen=True)
class NodeKind:
    """The nodes of a partition that are alike.

    Attributes
    ----------
    partition
        Its name.
    nodes, idle
        How many there are, and how many nobody uses.
    cpus, memory
        What each has; memory in MB.
    gpu, gpus
        The GPUs of each: what Slurm calls them, in capitals, and how many.
    limit
        The longest time of a job, as Slurm writes it.
    is_default
        Whether jobs go there that name none.
    """

    partition: str
    nodes: int
    idle: int
    cpus: int
    memory: int
    gpu: str | None
    gpus: int
    limit: str
    is_default: bool

    def __str__(self) -> str:
        gpus = f"{self.gpus} × {self.gpu or 'GPU'}, " if self.gpus else ""
        size = f"{gpus}{self.cpus} CPUs, {self.memory / 1000:.0f} GB"
        free = f"{self.idle} of {format_count(self.nodes, 'node')} idle"
        limit = "without a time limit" if self.limit == "infinite" else f"at most {self.limit}"
        return f"{self.partition}: {size}, {free}, {limit}"


def node_kinds() -> list[NodeKind]:
    """Ask the controller.

    Raises
    ------
    SkyError
        When it does not answer, or Slurm's commands are not here.
    """
    said = event_loop.wait(ask(["sinfo", "--noheader", "--exact", "--format=%P|%a|%F|%c|%m|%l|%G"]))
    return [kind for line in said.splitlines() if (kind := _node_kind(line.split("|"))) is not None]


def gpus_of(resources: str) -> tuple[str | None, int]:
    """Return name, in capitals, and number of the GPUs among resources as Slurm writes them."""
    found = _GPU.search(resources)
    if found is None:
        return None, 0
    return found[1].upper() if found[1] else None, int(found[2])


def diagnose() -> Iterator[CheckResult]:
    """Check one thing after the other, and yield what was found."""
    try:
        version = event_loop.wait(ask(["sbatch", "--version"]))
        yield CheckResult("Slurm", version.removeprefix("slurm ").strip())
        kinds = node_kinds()
    except SkyError as error:
        yield CheckResult("Slurm", "cannot be used", f"{error}")
        return
    for kind in kinds:
        yield CheckResult("partition", f"{kind}")
    if not kinds:
        yield CheckResult("partition", "none is up", "ask who runs the cluster")


def _node_kind(fields: list[str]) -> NodeKind | None:
    """Return what a line of sinfo says; ``None`` for a partition that takes no jobs."""
    name, state, counts, cpus, memory, limit, gres = fields
    if state != "up":
        return None
    _, idle, _, nodes = map(int, counts.split("/"))
    gpu, gpus = gpus_of(gres)
    return NodeKind(
        partition=name.rstrip("*"),
        nodes=nodes,
        idle=idle,
        cpus=int(cpus.rstrip("+")),
        memory=int(memory.rstrip("+")),
        gpu=gpu,
        gpus=gpus,
        limit=limit,
        is_default=name.endswith("*"),
    )
