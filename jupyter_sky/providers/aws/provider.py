"""The AWS provider: nodes are EC2 instances, rented for a cluster and released with it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import doctor, iam_policy, inventory
from jupyter_sky.providers.aws.cancellable import Cancellable
from jupyter_sky.providers.aws.clients import Clients, clients, clients_at
from jupyter_sky.providers.aws.ec2 import power
from jupyter_sky.providers.aws.ec2.bootstrap import NodeBootstrap
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.aws.market import storage
from jupyter_sky.providers.aws.market.offers import offers_table
from jupyter_sky.providers.aws.market.selection import InstanceOffer
from jupyter_sky.providers.aws.network import session
from jupyter_sky.providers.aws.renting import choice, dry_run, rent, resume
from jupyter_sky.providers.aws.renting.budget import Budget, money_left, share_rest, spent_at
from jupyter_sky.providers.aws.settings import Settings
from jupyter_sky.providers.aws.teardown import release
from jupyter_sky.providers.base import Machine, Progress
from jupyter_sky.providers.cloud import CloudResources
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.progress import say
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.machine import in_thread
from jupyter_sky.providers.ssh.provider import SSH
from jupyter_sky.transport.tasks import shielded


@dataclass(frozen=True)
class AWS(Settings):
    __doc__ = f"""Nodes that are instances of EC2.

    Credentials are those of AWS's own tools; they stay on this computer.

{(Settings.__doc__ or "").partition(chr(10) * 2)[2]}"""

    name = "aws"
    cloud = "AWS"
    default_nodes = 1

    def check(self, spec: ClusterSpec, preload: Sequence[str], present: int = 0) -> tuple[str, ...]:
        """Refuse what AWS does not offer, before anything is created there."""
        ssh = SSH(["instance"], python=self.python)
        warnings = ssh.check(replace(spec, nodes=1), preload)
        self._check_autostop(spec)
        self._check_ssm()
        self._offers_tried_first(spec, present)
        self.clients().user  # noqa: B018 - asked once, and kept
        return warnings

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Rent instances, wait until we can log in, and turn them into nodes."""
        here = await in_thread(self.clients)
        work = Cancellable(progress)
        try:
            rented = await work.run(lambda: rent.rent(here, self, spec, identity, work.report))
            bootstrap = NodeBootstrap(
                location=here.location,
                identity=identity,
                bastion=self.bastion,
                ssm=self.ssm,
                python=self.python,
                grace=self.grace,
                spot=rented[0].is_spot,
            )
            machines = await bootstrap.launch(rented, spec, preload, work.report)
            if spec.autostop:
                await in_thread(power.on_power_off, here, _ids(machines), "stop")
            return machines
        except BaseException:
            await work.stop()
            say(progress, "releasing everything")
            await shielded(self.release_cluster(identity, here.location, progress))
            raise

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""
        return Instance.from_row(row)

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Rent more instances like the cluster's, in the same zone."""
        like = _instance(running.machines[0])
        there = await in_thread(clients_at, like.location)
        work = Cancellable(progress)
        rented: list[RentedInstance] = []
        number = uuid.uuid4().hex
        if like.ssm:
            session.check_tools()
        if trouble := await in_thread(like.let_in):
            raise SkyError(f"{like.host} cannot be reached: {trouble}.")
        budget = await in_thread(Budget.of, running)
        try:
            await work.run(
                lambda: rented.extend(
                    rent.rent_more(there, self, running, like, budget, number, work.report)
                )
            )
            bootstrap = self._bootstrap_like(like)
            added = await bootstrap.add_nodes(rented, running, work.report)
            if running.spec.autostop:
                await in_thread(power.on_power_off, there, _ids(added.machines), "stop")
            return added
        except BaseException:
            await work.stop()
            say(progress, "releasing what was rented")
            ids = [each.id for each in rented]
            terminate = in_thread(release.terminate, there, like.cluster, ids, number)
            try:
                await shielded(terminate)
            finally:
                await shielded(in_thread(budget.share_as_before))
            raise

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Terminate instances, and wait until AWS confirms that they cost nothing more."""
        by_cluster: dict[tuple[str, str], list[str]] = {}
        for each in map(_instance, machines):
            by_cluster.setdefault((each.location, each.cluster), []).append(each.id)
        for (location, cluster), ids in by_cluster.items():
            there = await in_thread(clients_at, location)
            await in_thread(release.terminate, there, cluster, ids)

    async def share_rest(self, staying: Sequence[Machine], gone: Sequence[Machine]) -> None:
        """Let instances power off later, because others of their cluster are gone."""
        with contextlib.suppress(SkyError):
            await in_thread(share_rest, [*map(_instance, staying)], [*map(_instance, gone)])

    def location(self) -> str:
        """Return the region and the profile, so that the registry knows where to look."""
        return self.clients().location

    async def release_cluster(
        self, identity: str, location: str | None, progress: Progress
    ) -> None:
        """Terminate the instances of a cluster and remove everything else that it has at AWS.

        Raises
        ------
        SkyError
            If something may still be there.
        """
        there = await (in_thread(clients_at, location) if location else in_thread(self.clients))
        await in_thread(release.release, there, identity, progress)

    async def ended_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when instances ended, as far as AWS still knows."""
        return await in_thread(inventory.ended_at, [*map(_instance, machines)])

    async def list_resources(
        self, everywhere: bool = False
    ) -> tuple[list[CloudResources], list[str]]:
        """Return clusters' resources at all locations, and which of these cannot be examined."""
        return await in_thread(inventory.list_resources, everywhere)

    async def release_strays(self, identity: str, location: str, instances: Sequence[str]) -> None:
        """Terminate instances that a cluster does not know of."""
        there = await in_thread(clients_at, location)
        await in_thread(release.terminate, there, identity, instances)

    async def remove_unused(self) -> list[str]:
        """Remove leftovers of snapshots, and list existing ones with their cost."""
        return await in_thread(inventory.remove_unused)

    # Stopping and starting again

    def check_stop(self, machines: Sequence[Machine]) -> None:
        """Refuse spot instances: AWS cannot stop those of one-time requests."""
        if any(each.spot for each in map(_instance, machines)):
            raise UsageError(
                "AWS stops no spot instances: bring what you need with `%sky get`, and end them "
                "with `%sky down`; a cluster that is started without --spot can be stopped."
            )

    async def storage_price(self, machines: Sequence[Machine]) -> float | None:
        """Return the dollars an hour of the disks of instances."""
        there = await in_thread(clients_at, _instance(machines[0]).location)
        return await in_thread(storage.price, there, _ids(machines))

    async def money_left(self, machines: Sequence[Machine]) -> float | None:
        """Return the money left for running instances."""
        return await in_thread(money_left, [*map(_instance, machines)])

    async def stop_machines(self, machines: Sequence[Machine], autostop: bool) -> None:
        """Stop instances; their disks and private addresses stay."""
        there = await in_thread(clients_at, _instance(machines[0]).location)
        await in_thread(power.stop, there, _ids(machines), autostop)

    async def start_machines(
        self,
        spec: ClusterSpec,
        identity: str,
        machines: Sequence[Machine],
        preload: Sequence[str],
        progress: Progress,
        on_running: Callable[[], None],
        money: float | None = None,
    ) -> list[Machine]:
        """Start stopped instances, and turn them into nodes again."""
        before = sorted(map(_instance, machines), key=lambda each: each.nodes[0].node)
        like, ids = before[0], _ids(before)
        if like.ssm:
            session.check_tools()
        there = await in_thread(clients_at, like.location)
        work, begun = Cancellable(progress), threading.Event()

        def begin() -> None:
            begun.set()
            on_running()

        try:
            rented = await work.run(
                lambda: resume.resume(there, self, spec, before, money, work.report, begin)
            )
            bootstrap = self._bootstrap_like(like)
            until = spent_at(rented, money)
            started = await bootstrap.resume(rented, before, spec, preload, until, work.report)
            if not spec.autostop:
                await work.run(lambda: power.on_power_off(there, ids, "terminate"))
            return started
        except BaseException:
            await work.stop()
            if begun.is_set():
                say(progress, "stopping what was started")
                await shielded(in_thread(power.stop_again, there, ids))
            raise

    async def stopped_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when instances were stopped, according to AWS."""
        return await in_thread(inventory.stopped_at, [*map(_instance, machines)])

    # Features of AWS only

    def find_offers(self, spec: ClusterSpec, present: int = 0) -> list[InstanceOffer]:
        """Return matching offers, cheapest first."""
        return choice.fitting_offers(self.clients(), self, spec, present)

    def price_of(self, spec: ClusterSpec) -> float | None:
        """Return the dollars per hour of the cheapest matching instances."""
        price = self._offers_tried_first(spec)[0].price
        return None if price is None else price * spec.nodes

    def plan(self, spec: ClusterSpec) -> str:
        """Return what would be rented and created, and its cost, without doing it."""
        self._check_ssm()
        return dry_run.plan(self.clients(), self, spec)

    def offers_table(self, spec: ClusterSpec) -> str:
        """Return a table of matching offers, cheapest first."""
        return offers_table(self.clients(), choice.requirements(self.clients(), self, spec))

    def diagnose(self) -> Iterator[CheckResult]:
        """Run checks whether AWS can be used from here."""
        return doctor.diagnose(self)

    def policy(self) -> str:
        """Return the IAM policy that the user needs."""
        partition = "aws"
        with contextlib.suppress(SkyError):
            partition = iam_policy.partition_of(self.clients().region)
        return iam_policy.policy(self.instance_profile, partition, self.kms_key, self.ssm)

    def clients(self) -> Clients:
        """Return the clients of the provider's region and profile."""
        return clients(self.region, self.profile)

    def _offers_tried_first(self, spec: ClusterSpec, present: int = 0) -> list[InstanceOffer]:
        """Return matching offers: of spot if there are any, where on demand will do as well."""
        if self.spot_or_on_demand:
            with contextlib.suppress(UsageError):
                return replace(self, spot=True).find_offers(spec, present)
        return self.find_offers(spec, present)

    def _check_autostop(self, spec: ClusterSpec) -> None:
        if spec.autostop and (self.spot or self.spot_or_on_demand):
            raise UsageError("AWS stops no spot instances: leave out --autostop or --spot.")
        if spec.autostop and self.max_cost is not None:
            raise UsageError(
                "--max-cost ends machines with their disks, which --autostop keeps: leave out one "
                "of the two."
            )

    def _check_ssm(self) -> None:
        if not self.ssm:
            return
        if self.instance_profile is None:
            raise UsageError(f"--ssm: {doctor.NO_PROFILE}.")
        session.check_tools()

    def _bootstrap_like(self, like: Instance) -> NodeBootstrap:
        return NodeBootstrap(
            location=like.location,
            identity=like.cluster,
            bastion=like.bastion,
            ssm=like.ssm,
            python=self.python,
            grace=self.grace,
            spot=like.spot,
        )


def _ids(machines: Sequence[Machine]) -> list[str]:
    return [_instance(each).id for each in machines]


def _instance(machine: Machine) -> Instance:
    assert isinstance(machine, Instance)
    return machine
