"""From instances that run to nodes: reached with the cluster's keys, made safe, given an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.providers.aws.instance import Instance, reach, renew
from jupyter_sky.providers.aws.keys import keys_of
from jupyter_sky.providers.aws.launch import Rented
from jupyter_sky.providers.machine import Machine, Progress
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

    async def __call__(
        self,
        rented: Sequence[Rented],
        spec: ClusterSpec,
        preload: Sequence[str],
        progress: Progress,
    ) -> list[Machine]:
        """Wait until instances let us in, and start an agent on each."""
        hosts = [f"{each.user}@{each.address}" for each in rented]
        await self._get_in(rented, hosts, progress)
        ssh = SSH(hosts, python=self.python, grace=self.grace, spot=self.spot)
        machines = await ssh.launch(_as_rented(spec, rented[0]), self.identity, preload, progress)
        return [
            Instance.on(
                machine,
                nodes=tuple(replace(node, price=each.price) for node in machine.nodes),
                id=each.id,
                cluster=self.identity,
                place=self.place,
                type=each.type,
                content=each.content,
                zone=each.zone,
                bastion=self.bastion,
            )
            for machine, each in zip(machines, rented, strict=True)
        ]

    async def _get_in(
        self, rented: Sequence[Rented], hosts: Sequence[str], progress: Progress
    ) -> None:
        """Reach instances by the host key that they were told, and have them take another."""
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


def _as_rented(spec: ClusterSpec, rented: Rented) -> ClusterSpec:
    """Return the specification with all GPUs of the machines: they are paid for."""
    wanted = spec.accelerator
    accelerator = Accelerator(wanted) if isinstance(wanted, str) else wanted
    if accelerator is not None:
        accelerator = replace(accelerator, count=rented.gpus)
    # What AWS calls its machines' sizes is a little more than what their systems see.
    return replace(spec, accelerator=accelerator, cpus=None, memory=None)
