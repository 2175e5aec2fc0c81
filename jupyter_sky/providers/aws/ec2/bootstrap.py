"""From instances that run to nodes: reached with the cluster's keys, made safe, given an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.providers.aws.ec2.instance import Instance, reach, renew
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.launch import Rented
from jupyter_sky.providers.base import Growth, Machine, Progress, Standing
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.providers.ssh import SSH
from jupyter_sky.providers.ssh.machine import in_thread


@dataclass(frozen=True)
class NodeMaker:
    """Makes instances of a cluster its nodes.

    Attributes
    ----------
    place, identity
        Where the cluster is, and its id.
    bastion, python, grace, spot
        As in `jupyter_sky.AWS`.
    """

    place: str
    identity: str
    bastion: str | None
    python: str | None
    grace: float
    spot: bool

    async def launch(
        self,
        rented: Sequence[Rented],
        spec: ClusterSpec,
        preload: Sequence[str],
        progress: Progress,
    ) -> list[Machine]:
        """Wait until instances let us in, and start an agent on each."""
        ssh = await self._reached(rented, progress)
        spec = _as_rented(spec, rented[0])
        machines = await ssh.launch(spec, self.identity, preload, progress)
        return self._instances(machines, rented)

    async def grow(
        self, rented: Sequence[Rented], standing: Standing, progress: Progress
    ) -> Growth:
        """Do the same for instances that join a cluster."""
        ssh = await self._reached(rented, progress)
        standing = replace(standing, spec=_as_rented(standing.spec, rented[0]))
        growth = await ssh.grow(standing, progress)
        return replace(growth, machines=self._instances(growth.machines, rented))

    async def _reached(self, rented: Sequence[Rented], progress: Progress) -> SSH:
        """Reach instances by the host key that they were told, and have them take another."""
        hosts = [f"{each.user}@{each.address}" for each in rented]
        keys = keys_of(self.identity)
        _, boot_key = keys.host_key

        async def each(function: Callable[..., Any], *more: Any) -> list[Any]:
            jobs = (in_thread(function, host, keys, self.bastion, *more) for host in hosts)
            return list(await asyncio.gather(*jobs))

        keys.expect({each.address: boot_key for each in rented})
        await each(reach, progress)
        shown = await each(renew)
        keys.expect({one.address: key for one, key in zip(rented, shown, strict=True)})
        await each(reach, progress, True)
        return SSH(hosts, python=self.python, grace=self.grace, spot=self.spot)

    def _instances(self, machines: Sequence[Machine], rented: Sequence[Rented]) -> list[Machine]:
        return [
            Instance.on(
                machine,
                nodes=tuple(replace(node, price=each.price) for node in machine.nodes),
                id=each.id,
                cluster=self.identity,
                place=self.place,
                type=each.type,
                zone=each.zone,
                content=each.content,
                bastion=self.bastion,
                spot=self.spot,
            )
            for machine, each in zip(machines, rented, strict=True)
        ]


def _as_rented(spec: ClusterSpec, rented: Rented) -> ClusterSpec:
    """Return the specification with all GPUs of the machines: they are paid for."""
    wanted = spec.accelerator
    accelerator = Accelerator(wanted) if isinstance(wanted, str) else wanted
    if accelerator is not None:
        accelerator = replace(accelerator, count=rented.gpus)
    # What AWS calls its machines' sizes is a little more than what their systems see.
    return replace(spec, accelerator=accelerator, cpus=None, memory=None)
