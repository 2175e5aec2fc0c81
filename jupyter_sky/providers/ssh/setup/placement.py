"""Assigns ranks to hosts, and GPUs to ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.formatting import format_list
from jupyter_sky.providers.base import Node
from jupyter_sky.providers.node_defaults import thread_variables
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.transport.protocol.agent_spec import RankSpec


@dataclass(frozen=True)
class PlacedNode:
    """A node whose agent was not started yet.

    Attributes
    ----------
    devices
        The numbers of the GPUs that its ranks use.
    """

    node: Node
    devices: tuple[int, ...]

    def rank_specs(self, cpus: int) -> tuple[RankSpec, ...]:
        """Return its ranks, which share so many processors."""
        threads = thread_variables(len(self.node.ranks), cpus)
        return tuple(
            RankSpec(rank, {**threads, **self._visible(local)})
            for local, rank in enumerate(self.node.ranks)
        )

    def _visible(self, local: int) -> dict[str, str]:
        if not self.devices:
            return {}
        # The number is the driver's; CUDA's own order begins with the fastest.
        device = str(self.devices[local % len(self.devices)])
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device}


def place_nodes(
    targets: Sequence[Target], facts: Sequence[HostFacts], running: RunningCluster
) -> list[PlacedNode]:
    """Return a new node for each host, with the next ranks or with those of a lost node."""
    spec = running.spec
    gpus = [_devices(host, spec) for host in facts]
    counts = [
        target.ranks or spec.procs_per_node or max(1, len(devices))
        for target, devices in zip(targets, gpus, strict=True)
    ]
    placed = zip(running.new_numbers, running.new_ranks(counts), targets, facts, gpus, strict=True)
    return [
        PlacedNode(
            Node(
                node=number,
                addr=host.address,
                interface="",
                ranks=ranks,
                accelerators=len(devices),
                shared_accelerators=0 < len(devices) < len(ranks),
                gpu=host.gpus[devices[0]] if devices else None,
                name=str(target),
            ),
            devices,
        )
        for number, ranks, target, host, devices in placed
    ]


def check_size(facts: HostFacts, spec: ClusterSpec) -> None:
    """Refuse a host that is smaller than what was asked for.

    Raises
    ------
    HostError
        With what it has.
    """
    wanted = spec.wanted_gpus
    if wanted is not None and len(_devices(facts, spec)) < wanted.count:
        found = {name: facts.gpus.count(name) for name in facts.gpus}
        has = ", ".join(f"{count} × {name}" for name, count in found.items()) or "no GPU"
        if facts.gpu_trouble:
            has += f" that can be used (nvidia-smi says: {facts.gpu_trouble})"
        raise HostError(f"{wanted.count} × {wanted.name} was asked for, and it has {has}")
    memory = math.ceil(facts.memory / 2**30)
    for option, asked, has_it, unit in (
        ("--cpus", spec.cpus, facts.cpus, "processors"),
        ("--memory", spec.memory, memory, "GB"),
    ):
        if asked is not None and float(str(asked).rstrip("+")) > has_it:
            raise HostError(f"{option} {asked} was asked for, and it has {has_it} {unit}")


def shared_gpus(facts: HostFacts, spec: ClusterSpec) -> str:
    """Return that GPUs of a node are in use already, in words; empty if none is."""
    devices = _devices(facts, spec)
    shared = [f"{device}" for device in devices if device in facts.gpus_in_use]
    if not shared:
        return ""
    are = "GPU {} is" if len(shared) == 1 else "GPUs {} are"
    return f"{are.format(format_list(shared))} in use already, by others or by a cluster of yours"


def _devices(facts: HostFacts, spec: ClusterSpec) -> tuple[int, ...]:
    wanted = spec.wanted_gpus
    every = range(len(facts.gpus))
    if wanted is None:
        return tuple(every)
    suited = [device for device in every if wanted.fits(facts.gpus[device])]
    suited.sort(key=lambda device: device in facts.gpus_in_use)
    return tuple(sorted(suited[: wanted.count]))
