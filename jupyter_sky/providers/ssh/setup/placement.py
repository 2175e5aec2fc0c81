"""Which ranks go to which host, and what they see of its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jupyter_sky.providers.base import Node, Standing
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.providers.ssh.connection.connection import HostError
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup.probe import Probe


@dataclass(frozen=True)
class Place:
    """A node before it has its address.

    Attributes
    ----------
    devices
        The numbers of the GPUs that its ranks use.
    """

    node: Node
    devices: tuple[int, ...]

    def ranks(self, cpus: int) -> list[dict[str, object]]:
        """Return the ranks as the agent is told of them."""
        return [
            {"rank": rank, "env": self._variables(local, cpus)}
            for local, rank in enumerate(self.node.ranks)
        ]

    def _variables(self, local: int, cpus: int) -> dict[str, str]:
        count = len(self.node.ranks)
        # As torchrun does: ranks that share the processors do not crowd each other out.
        found = {"OMP_NUM_THREADS": str(max(1, cpus // count))} if count > 1 else {}
        if self.devices:
            found["CUDA_VISIBLE_DEVICES"] = str(self.devices[local % len(self.devices)])
        return found


def plan(targets: Sequence[Target], probes: Iterable[Probe], standing: Standing) -> list[Place]:
    """Share out the ranks that a cluster lacks, host by host."""
    places: list[Place] = []
    spec, lost = standing.spec, {node.node: node for node in standing.lost}
    first = sum(len(node.ranks) for node in [*standing.nodes, *standing.lost])
    for number, target, here in zip(standing.numbers, targets, probes, strict=True):
        devices = _devices(here, spec)
        if number in lost:
            ranks = lost[number].ranks
        else:
            count = target.ranks or spec.procs_per_node or max(1, len(devices))
            ranks = tuple(range(first, first + count))
            first += count
        node = Node(
            node=number,
            addr=here.address,
            interface="",
            ranks=ranks,
            accelerators=len(devices),
            shared_accelerators=0 < len(devices) < len(ranks),
            gpu=here.gpus[devices[0]] if devices else None,
            name=str(target),
        )
        places.append(Place(node, devices))
    return places


def check_size(here: Probe, spec: ClusterSpec) -> None:
    """Refuse a host that is smaller than what was asked for.

    Raises
    ------
    HostError
        With what it has.
    """
    wanted = _wanted(spec)
    if wanted is not None and len(_devices(here, spec)) < wanted.count:
        found = {name: here.gpus.count(name) for name in here.gpus}
        has = ", ".join(f"{count} × {name}" for name, count in found.items()) or "no GPU"
        raise HostError(f"{wanted.count} × {wanted.name} was asked for, and it has {has}")
    memory = math.ceil(here.memory / 2**30)
    for option, asked, has_it, unit in (
        ("--cpus", spec.cpus, here.cpus, "processors"),
        ("--memory", spec.memory, memory, "GB"),
    ):
        if asked is not None and float(str(asked).rstrip("+")) > has_it:
            raise HostError(f"{option} {asked} was asked for, and it has {has_it} {unit}")


def _wanted(spec: ClusterSpec) -> Accelerator | None:
    return Accelerator(spec.accelerator) if isinstance(spec.accelerator, str) else spec.accelerator


def _devices(here: Probe, spec: ClusterSpec) -> tuple[int, ...]:
    wanted = _wanted(spec)
    every = range(len(here.gpus))
    if wanted is None:
        return tuple(every)
    return tuple(device for device in every if wanted.fits(here.gpus[device]))[: wanted.count]
