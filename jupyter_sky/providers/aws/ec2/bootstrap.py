"""Making nodes of instances that run: waiting for the login, renewing host keys, adding agents."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.key_pairs import ClusterKeys, keys_of
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.aws.ec2.login import (
    LoginRoute,
    connection_to,
    hang_up,
    renew_host_key,
    send_beat,
    wait_for_login,
    way_to,
)
from jupyter_sky.providers.aws.ec2.user_data import power_off_script
from jupyter_sky.providers.base import Machine, Progress
from jupyter_sky.providers.progress import Preparation
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.machine import in_thread, submit
from jupyter_sky.providers.ssh.provider import SSH
from jupyter_sky.providers.ssh.setup.agent import remove_agent
from jupyter_sky.transport.tasks import shielded

BEAT_EVERY = 30.0
"""Seconds between two heart beats."""


@dataclass(frozen=True)
class NodeBootstrap:
    """Makes nodes of the instances of a cluster.

    Attributes
    ----------
    location, identity
        Where the cluster is, and its id.
    bastion, ssm, python, grace, spot
        As in `jupyter_sky.AWS`.
    """

    location: str
    identity: str
    bastion: str | None
    ssm: bool
    python: str | None
    grace: float
    spot: bool

    async def launch(
        self,
        rented: Sequence[RentedInstance],
        spec: ClusterSpec,
        preload: Sequence[str],
        progress: Progress,
    ) -> list[Machine]:
        """Wait until instances let us in, and start an agent on each."""
        async with self._beating() as logged_in:
            ssh = await self._log_in(rented, progress, logged_in)
            spec = _as_rented(spec, rented[0])
            machines = await ssh.launch(spec, self.identity, preload, progress)
        return self._instances(machines, rented)

    async def resume(
        self,
        rented: Sequence[RentedInstance],
        before: Sequence[Instance],
        spec: ClusterSpec,
        preload: Sequence[str],
        until: float | None,
        progress: Progress,
    ) -> list[Machine]:
        """Do the same for instances that were stopped, which show the keys that they have shown.

        Parameters
        ----------
        before
            The same instances, as they were reached before.
        until
            When they power off because the money is spent, as ``time.monotonic`` counts.
        """
        hosts = [f"{each.user}@{each.address}" for each in rented]
        keys = keys_of(self.identity)
        shown = keys.of_instances()
        if unknown := [each.id for each in rented if each.id not in shown]:
            raise SkyError(
                f"the host key of {', '.join(unknown)} is not known here: start it on the computer "
                "that has started it first."
            )
        keys.expect({each.address: shown[each.id] for each in rented})
        async with self._beating() as logged_in:
            report, stop = _stoppable(progress)

            def take_up(host: str, was: Instance) -> None:
                way = self._way(was.id)
                wait_for_login(host, keys, way, report, False, len(hosts))
                send_beat(host, keys, way)
                logged_in.append((host, way))
                if until is not None:
                    left = power_off_script(until - time.monotonic())
                    connection_to(host, keys, way).run(left)
                # Of the agent that was cut off: its disk has its files.
                remove_agent(connection_to(host, keys, way), was.folder, was.blobs)

            jobs = [submit(take_up, *each) for each in zip(hosts, before, strict=True)]
            await self._gather(hosts, jobs, stop)
            ssh = SSH(hosts, python=self.python, grace=self.grace, spot=self.spot)
            machines = await ssh.launch(
                _as_rented(spec, rented[0]), self.identity, preload, progress
            )
        return self._instances(machines, rented)

    async def add_nodes(
        self, rented: Sequence[RentedInstance], running: RunningCluster, progress: Progress
    ) -> AddedNodes:
        """Do the same for instances that join a cluster."""
        async with self._beating() as logged_in:
            ssh = await self._log_in(rented, progress, logged_in)
            running = replace(running, spec=_as_rented(running.spec, rented[0]))
            added = await ssh.add_nodes(running, progress)
        return replace(added, machines=self._instances(added.machines, rented))

    @contextlib.asynccontextmanager
    async def _beating(self) -> AsyncIterator[list[tuple[str, LoginRoute]]]:
        """Tell hosts to stay, which are added to the list, as long as this goes on."""
        hosts: list[tuple[str, LoginRoute]] = []

        def beat(host: str, way: LoginRoute) -> None:
            with contextlib.suppress(SkyError):
                send_beat(host, keys_of(self.identity), way)

        async def beat_all() -> None:
            while True:
                await asyncio.gather(*(in_thread(beat, *each) for each in hosts))
                await asyncio.sleep(BEAT_EVERY)

        beating = asyncio.get_running_loop().create_task(beat_all())
        try:
            yield hosts
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _log_in(
        self,
        rented: Sequence[RentedInstance],
        progress: Progress,
        logged_in: list[tuple[str, LoginRoute]],
    ) -> SSH:
        """Wait until instances show the host key that they booted with, and renew it."""
        hosts = [f"{each.user}@{each.address}" for each in rented]
        keys = keys_of(self.identity)
        report, stop = _stoppable(progress)
        ways = [self._way(each.id) for each in rented]
        _, boot_key = keys.host_key

        async def each(function: Callable[..., Any], *more: Any) -> list[Any]:
            to = zip(hosts, ways, strict=True)
            jobs = [submit(function, host, keys, way, *more) for host, way in to]
            return await self._gather(hosts, jobs, stop)

        keys.expect({each.address: boot_key for each in rented})

        def log_in(host: str, keys: ClusterKeys, way: LoginRoute, *more: Any) -> None:
            wait_for_login(host, keys, way, *more)
            send_beat(host, keys, way)
            logged_in.append((host, way))

        await each(log_in, report, False, len(hosts))
        shown = await each(renew_host_key)
        keys.expect({one.address: key for one, key in zip(rented, shown, strict=True)})
        keys.remember({one.id: key for one, key in zip(rented, shown, strict=True)})
        await each(wait_for_login, report, True, len(hosts))
        return SSH(hosts, python=self.python, grace=self.grace, spot=self.spot)

    async def _gather(
        self, hosts: Sequence[str], jobs: Sequence[Future[Any]], stop: threading.Event
    ) -> list[Any]:
        """Wait for what is done on hosts; where that is given up, leave no session behind."""
        try:
            return list(await asyncio.gather(*map(asyncio.wrap_future, jobs)))
        except BaseException:
            stop.set()
            if self.ssm:
                await shielded(in_thread(hang_up, hosts, jobs))
            raise

    def _way(self, instance: str) -> LoginRoute:
        return way_to(instance, self.location, self.bastion, self.ssm)

    def _instances(
        self, machines: Sequence[Machine], rented: Sequence[RentedInstance]
    ) -> list[Machine]:
        return [
            Instance.from_machine(
                machine,
                nodes=tuple(replace(node, price=each.price) for node in machine.nodes),
                id=each.id,
                cluster=self.identity,
                location=self.location,
                type=each.type,
                zone=each.zone,
                content=each.content,
                bastion=self.bastion,
                ssm=self.ssm,
                spot=self.spot,
            )
            for machine, each in zip(machines, rented, strict=True)
        ]


def _stoppable(progress: Progress) -> tuple[Progress, threading.Event]:
    """Return what reports progress, and raises instead when an event is set."""
    stop = threading.Event()

    def report(text: str | Preparation) -> None:
        if stop.is_set():
            raise SkyError("it was stopped.")
        progress(text)

    return report, stop


def _as_rented(spec: ClusterSpec, rented: RentedInstance) -> ClusterSpec:
    """Return the specification with all GPUs of the instances: they are paid for."""
    accelerator = spec.wanted_gpus
    if accelerator is not None:
        accelerator = replace(accelerator, count=rented.gpus)
    # The memory that AWS tells of a type is a little more than what its system sees.
    return replace(spec, accelerator=accelerator, cpus=None, memory=None)
