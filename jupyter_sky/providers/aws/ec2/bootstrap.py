"""Making nodes of instances that run: waiting for the login, renewing host keys, adding agents."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.aws.ec2.login import InstanceLogin
from jupyter_sky.providers.aws.ec2.user_data import power_off_script
from jupyter_sky.providers.base import Machine, Progress
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.host_threads import hang_up
from jupyter_sky.providers.ssh.machine import in_thread, submit
from jupyter_sky.providers.ssh.provider import SSH
from jupyter_sky.providers.ssh.setup.agent import remove_agent
from jupyter_sky.transport.tasks import shielded

T = TypeVar("T")

BEAT_EVERY = 30.0
"""Seconds between two heart beats."""

_BEATS_AT_ONCE = 32


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
        async with self._at_work(rented, progress) as work:
            ssh = await self._log_in(rented, work)
            spec = _as_rented(spec, rented[0])
            machines = await ssh.launch(spec, self.identity, preload, progress)
        return self._instances(machines, rented)

    async def add_nodes(
        self, rented: Sequence[RentedInstance], running: RunningCluster, progress: Progress
    ) -> AddedNodes:
        """Do the same for instances that join a cluster."""
        async with self._at_work(rented, progress) as work:
            ssh = await self._log_in(rented, work)
            running = replace(running, spec=_as_rented(running.spec, rented[0]))
            added = await ssh.add_nodes(running, progress)
        return replace(added, machines=self._instances(added.machines, rented))

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
        keys = keys_of(self.identity)
        shown = keys.of_instances()
        if unknown := [each.id for each in rented if each.id not in shown]:
            raise SkyError(
                f"the host key of {', '.join(unknown)} is not known here: start it on the computer "
                "that has started it first."
            )
        keys.expect({each.address: shown[each.id] for each in rented})
        agents = {was.id: (was.folder, was.blobs) for was in before}
        async with self._at_work(rented, progress) as work:

            def take_up(login: InstanceLogin, instance: RentedInstance) -> None:
                login.connection().close()  # a start that failed may have left one
                work.log_in(login)
                if until is not None:
                    login.connection().run(power_off_script(until - time.monotonic()))
                # Of the agent that was cut off: its disk has its files.
                remove_agent(login.connection(), *agents[instance.id])

            await work.on_each(take_up, rented)
            ssh, spec = self._ssh(work.logins), _as_rented(spec, rented[0])
            machines = await ssh.launch(spec, self.identity, preload, progress)
        return self._instances(machines, rented)

    @contextlib.asynccontextmanager
    async def _at_work(
        self, rented: Sequence[RentedInstance], progress: Progress
    ) -> AsyncIterator[_Work]:
        """Tell instances that have let us in to stay, as long as this goes on."""
        work = _Work(self._logins(rented), progress)

        def beat(login: InstanceLogin) -> None:
            with contextlib.suppress(SkyError):
                login.send_beat()

        loop = asyncio.get_running_loop()
        # Those of the work may all be busy for minutes: instances would take us for gone.
        threads = ThreadPoolExecutor(_BEATS_AT_ONCE, "sky-beats")

        async def beat_all() -> None:
            while True:
                beats = (loop.run_in_executor(threads, beat, each) for each in work.logged_in)
                await asyncio.gather(*beats)
                await asyncio.sleep(BEAT_EVERY)

        beating = loop.create_task(beat_all())
        try:
            yield work
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            threads.shutdown(wait=False, cancel_futures=True)

    async def _log_in(self, rented: Sequence[RentedInstance], work: _Work) -> SSH:
        """Wait until instances show the host key that they booted with, and renew it."""
        keys = keys_of(self.identity)
        _, boot_key = keys.host_key
        keys.expect({each.address: boot_key for each in rented})
        await work.on_each(work.log_in)
        shown = await work.on_each(InstanceLogin.renew_host_key)
        keys.expect({one.address: key for one, key in zip(rented, shown, strict=True)})
        keys.remember({one.id: key for one, key in zip(rented, shown, strict=True)})
        await work.on_each(work.wait_for_new_key)
        return self._ssh(work.logins)

    def _logins(self, rented: Sequence[RentedInstance]) -> list[InstanceLogin]:
        return [
            InstanceLogin.to(
                f"{each.user}@{each.address}",
                self.identity,
                each.id,
                self.location,
                self.bastion,
                self.ssm,
            )
            for each in rented
        ]

    def _ssh(self, logins: Sequence[InstanceLogin]) -> SSH:
        hosts = [each.host for each in logins]
        return SSH(hosts, python=self.python, grace=self.grace, spot=self.spot)

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


class _Work:
    """What is done on all instances at a time, in threads.

    Parameters
    ----------
    logins
        The logins to them.
    progress
        Called with each step.

    Attributes
    ----------
    logins
        The logins to them.
    logged_in
        Those that have let us in.
    """

    def __init__(self, logins: Sequence[InstanceLogin], progress: Progress) -> None:
        self.logins = logins
        self.logged_in: list[InstanceLogin] = []
        self._progress = progress
        self._stopped = threading.Event()

    async def on_each(self, function: Callable[..., T], *more: Sequence[Any]) -> list[T]:
        """Call a function with each login, and what else is its own; return the results.

        Where that fails, no session is left behind.
        """
        jobs = [submit(function, *each) for each in zip(self.logins, *more, strict=True)]
        try:
            return list(await asyncio.gather(*map(asyncio.wrap_future, jobs)))
        except BaseException:
            self._stopped.set()
            if any(each.session for each in self.logins):
                targets = [parse_one(each.host) for each in self.logins]
                await shielded(in_thread(hang_up, targets, jobs))
            raise

    def log_in(self, login: InstanceLogin) -> None:
        """Wait until an instance lets us in, and tell it to stay."""
        login.wait(self._report, len(self.logins))
        login.send_beat()
        self.logged_in.append(login)

    def wait_for_new_key(self, login: InstanceLogin) -> None:
        """Wait until an instance shows its new host key."""
        login.wait(self._report, len(self.logins), renewed=True)

    def _report(self, text: str) -> None:
        if self._stopped.is_set():
            raise SkyError("it was stopped.")
        self._progress(text)


def _as_rented(spec: ClusterSpec, rented: RentedInstance) -> ClusterSpec:
    """Return the specification with all GPUs of the instances: they are paid for."""
    accelerator = spec.wanted_gpus
    if accelerator is not None:
        accelerator = replace(accelerator, count=rented.gpus)
    # The memory that AWS tells of a type is a little more than what its system sees.
    return replace(spec, accelerator=accelerator, cpus=None, memory=None)
