"""What partitions a Slurm cluster has, what is free in them now, and whether it answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, format_list
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.slurm.login import LoginNode
from jupyter_sky.providers.spec import Accelerator
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
        The GPUs of each: what Slurm calls them, if it has a name for them, and how many.
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
        gpus = f"{self.gpus} × {(self.gpu or 'GPU').upper()}, " if self.gpus else ""
        size = f"{gpus}{self.cpus} CPUs, {self.memory / 1000:.0f} GB"
        free = f"{self.idle} of {format_count(self.nodes, 'node')} idle"
        limit = "without a time limit" if self.limit == "infinite" else f"at most {self.limit}"
        return f"{self.partition}: {size}, {free}, {limit}"


@dataclass(frozen=True)
class Account:
    """An account that the user can name, or what it is on one partition.

    Attributes
    ----------
    name
        Its name.
    partition
        The partition; empty for all of them.
    qos
        What can be named with it.
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
    """Return the accounts of the user; none where Slurm keeps none, or does not say."""
    try:
        user = await at.ask(["id", "-un"])
        fields = "format=account,partition,qos,maxwall"
        shown = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
        said = await at.ask([*shown, "where", f"user={user}", fields])
    except SkyError:
        return []
    rows = [line.split("|") for line in said.splitlines()]
    return [
        Account(name, partition, tuple(filter(None, qos.split(","))), limit)
        for name, partition, qos, limit in rows
    ]


async def node_kinds(at: LoginNode) -> list[NodeKind]:
    """Ask the controller.

    Raises
    ------
    SkyError
        When it does not answer, or Slurm's commands are not here.
    """
    said = await at.ask(["sinfo", "--noheader", "--exact", "--format=%P|%a|%F|%c|%m|%l|%G"])
    return [kind for line in said.splitlines() if (kind := _node_kind(line.split("|"))) is not None]


def gpus_of(resources: str) -> tuple[str | None, int]:
    """Return name, if they have one, and number of the GPUs among resources of Slurm's."""
    found = _GPU.search(resources)
    return (found[1], int(found[2])) if found else (None, 0)


def fits(wanted: Accelerator, gpu: str | None, gpus: int) -> bool:
    """Return whether GPUs that Slurm calls `gpu` are what is wanted, and enough."""
    return gpus >= wanted.count and (gpu is None or wanted.fits(gpu))


async def resource_of(at: LoginNode, wanted: Accelerator, partition: str | None) -> str:
    """Return GPUs as Slurm wants to be asked for them, by the names that it has for its own.

    Raises
    ------
    UsageError
        When it has several that are meant, of which none has just this name.
    """
    there = [each for each in await node_kinds(at) if partition in (None, each.partition)]
    suited = [each for each in there if fits(wanted, each.gpu, each.gpus)]
    # Jobs that name no partition go to that one.
    suited = [each for each in suited if each.is_default] or suited
    names = _closest(wanted, list(dict.fromkeys(each.gpu for each in suited)))
    if len(names) > 1:
        raise UsageError(
            f"`--gpu {wanted.name}` can be {' or '.join(map(str, names))} here: name "
            "the memory of one, as in `--gpu A100-80GB`, or the `--partition` that has it alone."
        )
    # A name that Slurm does not have is refused by Slurm, in its own words.
    name = names[0] if names else wanted.name.lower()
    return f"gpu:{name}:{wanted.count}" if name else f"gpu:{wanted.count}"


def _closest(wanted: Accelerator, names: Sequence[str | None]) -> Sequence[str | None]:
    """Return those of some names that have just the wanted one, or else all of its words."""
    model, _, kind = wanted.name.lower().partition("-")
    same = [each for each in names if each and _words(each) == [model, *filter(None, [kind])]]
    named = [each for each in names if each and kind and kind in _words(each)]
    return same or named or names


def _words(name: str) -> list[str]:
    return re.split(r"[\s_-]+", name.lower())


def diagnose(at: LoginNode) -> Iterator[CheckResult]:
    """Check one thing after the other, and yield what was found."""
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
