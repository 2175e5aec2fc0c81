"""The partitions of a Slurm cluster, their free nodes, and checks for `%sky doctor`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, format_list
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.slurm.login import LoginNode, rows
from jupyter_sky.providers.spec import Accelerator
from jupyter_sky.transport import event_loop

# A part of one may be called 1g.5gb.
_GPU = re.compile(r"gpu:(?:([\w.-]*[A-Za-z][\w.-]*):)?(\d+)")


@dataclass(frozen=True)
class NodeKind:
    """Similar nodes of a partition.

    Attributes
    ----------
    partition
        Its name.
    nodes, idle
        How many there are, and how many are idle.
    cpus, memory
        The processors, and the memory in MB, of each.
    gpu, gpus
        The GPUs of each: Slurm's name for them, if any, and how many.
    limit
        The time limit of jobs, in Slurm's notation.
    is_default
        Whether it is the default partition.
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
        gpus = f"{self.gpus} × {(self.gpu or 'GPU').upper()}, " if self.gpus else ""
        size = f"{gpus}{self.cpus} CPUs, {self.memory / 1000:.0f} GB"
        free = f"{self.idle} of {format_count(self.nodes, 'node')} idle"
        limit = "without a time limit" if self.limit == "infinite" else f"at most {self.limit}"
        return f"{self.partition}: {size}, {free}, {limit}"


@dataclass(frozen=True)
class Account:
    """An account of the user, perhaps limited to one partition.

    Attributes
    ----------
    name
        Its name.
    partition
        The partition; empty for all of them.
    qos
        The QOS that can be used with it.
    limit
        The longest time of a job, as Slurm writes it; empty for none.
    """

    name: str
    partition: str
    qos: tuple[str, ...]
    limit: str

    def __str__(self) -> str:
        where = f" on {self.partition}" if self.partition else ""
        qos = f" with the QOS {format_list(self.qos)}" if self.qos else ""
        limit = f", at most {self.limit}" if self.limit else ""
        return f"{self.name}{where}{qos}{limit}"


async def accounts(at: LoginNode) -> list[Account]:
    """Return the user's accounts; none if Slurm has no accounting, or does not answer."""
    try:
        user = await at.ask(["id", "-un"])
        fields = "format=account,partition,qos,maxwall"
        shown = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
        said = await at.ask([*shown, "where", f"user={user}", fields])
    except SkyError:
        return []
    return [
        Account(name, partition, tuple(filter(None, qos.split(","))), limit)
        for name, partition, qos, limit in rows(said, 4)
    ]


async def node_kinds(at: LoginNode) -> list[NodeKind]:
    """Ask the controller.

    Raises
    ------
    SkyError
        If it does not answer, or Slurm's commands are not here.
    """
    said = await at.ask(["sinfo", "--noheader", "--exact", "--format=%P|%a|%F|%c|%m|%l|%G"])
    return [kind for fields in rows(said, 7) if (kind := _node_kind(fields)) is not None]


async def own_share(at: LoginNode, partition: str, own: Collection[str], more: int) -> str:
    """Return that a cluster has those nodes of a partition itself that more would have to be.

    Parameters
    ----------
    at
        The login node.
    partition
        The partition.
    own
        The nodes that the cluster has.
    more
        How many more it waits for.

    Returns
    -------
    str
        That in words; empty if there are enough others.
    """
    if not own:
        return ""
    try:
        there = sum(each.nodes for each in await node_kinds(at) if each.partition == partition)
    except SkyError:
        return ""
    if not there or there - len(own) >= more:
        return ""
    return f"{partition} has {format_count(there, 'node')}, {len(own)} of them this cluster's own"


def gpus_of(resources: str) -> tuple[str | None, int]:
    """Return the name, if any, and the number of the GPUs in a Slurm resource list."""
    found = _GPU.search(resources)
    return (found[1], int(found[2])) if found else (None, 0)


def fits(wanted: Accelerator, gpu: str | None, gpus: int) -> bool:
    """Return whether GPUs that Slurm calls `gpu` match the request, and suffice."""
    return gpus >= wanted.count and (gpu is None or wanted.fits(gpu))


async def resource_of(at: LoginNode, wanted: Accelerator, partition: str | None) -> str:
    """Return the request for GPUs, with Slurm's own names for them.

    Raises
    ------
    UsageError
        If several kinds match, and none has exactly this name.
    """
    there = [each for each in await node_kinds(at) if partition in (None, each.partition)]
    suited = [each for each in there if fits(wanted, each.gpu, each.gpus)]
    # The default partition is used for jobs that name none.
    suited = [each for each in suited if each.is_default] or suited
    names = _closest(wanted, list(dict.fromkeys(each.gpu for each in suited)))
    if len(names) > 1:
        raise UsageError(
            f"--gpu {wanted.name} can be {' or '.join(map(str, names))} here: name "
            "the memory of one, as in `--gpu A100-80GB`, or the `--partition` that has it alone."
        )
    # Slurm refuses an unknown name with its own message.
    name = names[0] if names else wanted.name.lower()
    return f"gpu:{name}:{wanted.count}" if name else f"gpu:{wanted.count}"


def _closest(wanted: Accelerator, names: Sequence[str | None]) -> Sequence[str | None]:
    """Return the names that equal the wanted one, or else those that contain all of its words."""
    model, _, kind = wanted.name.lower().partition("-")
    same = [each for each in names if each and _words(each) == [model, *filter(None, [kind])]]
    named = [each for each in names if each and kind and kind in _words(each)]
    return same or named or names


def _words(name: str) -> list[str]:
    return re.split(r"[\s_-]+", name.lower())


def diagnose(at: LoginNode) -> Iterator[CheckResult]:
    """Run checks, and yield the results."""
    try:
        version = event_loop.wait(at.ask(["sbatch", "--version"]))
        yield CheckResult("Slurm", version.removeprefix("slurm ").strip())
        kinds = event_loop.wait(node_kinds(at))
    except SkyError as error:
        yield CheckResult("Slurm", "cannot be used", f"{error}")
        return
    for kind in kinds:
        yield CheckResult("partition", f"{kind}")
    if not kinds:
        yield CheckResult("partition", "none is up", "ask who runs the cluster")
    for account in event_loop.wait(accounts(at)):
        yield CheckResult("account", f"{account}")


def _node_kind(fields: list[str]) -> NodeKind | None:
    """Parse a line of sinfo; return ``None`` for a partition that accepts no jobs."""
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
