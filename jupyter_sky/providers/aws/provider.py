"""The AWS provider: nodes are instances of EC2, rented for a cluster and released with it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.providers.aws import doctor, iam_policy, inventory, local_store
from jupyter_sky.providers.aws.budget import Budget
from jupyter_sky.providers.aws.cancellable import Cancellable
from jupyter_sky.providers.aws.clients import Clients, clients, clients_at
from jupyter_sky.providers.aws.ec2 import launch, scale_out, snapshots
from jupyter_sky.providers.aws.ec2.bootstrap import NodeBootstrap
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.launch import RentedInstance
from jupyter_sky.providers.aws.ec2.launch_request import LaunchRequest
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.confirmation import ask, check_max_price, confirm_price
from jupyter_sky.providers.aws.market.limits import Limits, is_as_cheap, where_price_is_known
from jupyter_sky.providers.aws.market.offers import find_offers, offers_table
from jupyter_sky.providers.aws.market.selection import (
    InstanceOffer,
    InstanceRequirements,
    NotOffered,
)
from jupyter_sky.providers.aws.settings import check_settings
from jupyter_sky.providers.aws.tags import REQUEST, cluster_tags
from jupyter_sky.providers.aws.teardown import release
from jupyter_sky.providers.base import (
    AddedNodes,
    Machine,
    Progress,
    RunningCluster,
)
from jupyter_sky.providers.cloud import CloudResources
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh import SSH
from jupyter_sky.providers.ssh.machine import in_thread

_DEFAULT_DISK = 100  # GB: the Deep Learning image takes more than half of it


@dataclass(frozen=True)
class AWS:
    """Nodes that are instances of EC2.

    Credentials are those of AWS's own tools; they stay on this computer.

    Parameters
    ----------
    region, zone
        Where; by default the region of the AWS configuration, and any of its zones.
    instance_type
        The instance type; by default the cheapest that fits.
    spot
        Whether to take machines that cost less and may be taken away.
    max_price
        Dollars an hour that all nodes together may cost.
    max_cost
        Dollars after which the machines power off by themselves, whatever goes on.
    ask_above
        Dollars an hour above which the user is asked first; ``max_price`` answers as well.
    image_id, user
        An image, and the user that it lets in; by default the newest Ubuntu.
    disk
        Gigabytes of disk on each machine.
    subnet
        The subnet to be in; by default one of the default network.
    addresses
        ``"public"``, or ``"private"`` where this computer is in the network or `bastion` leads
        into it.
    bastion
        A host of ``~/.ssh/config`` to go through.
    ssh_from
        Who may log in, as CIDR; by default this computer's address and no other.
    instance_profile
        The name of an IAM instance profile; by default machines may do nothing at AWS.
    profile
        The profile of the AWS configuration.
    python
        An interpreter that the image has already; see `jupyter_sky.SSH`.
    idle_timeout
        Seconds without a run after which a cluster ends itself for which none are given, also
        while a notebook is connected; ``None``: never.
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    watch_every
        Seconds between two looks of a machine at whether it is still needed.
    spot_or_on_demand
        Whether to take spot machines where there are some, and others where there are none.
    """

    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    spot: bool = False
    max_price: float | None = None
    max_cost: float | None = None
    ask_above: float = 10.0
    image_id: str | None = None
    user: str | None = None
    disk: int = _DEFAULT_DISK
    subnet: str | None = None
    addresses: str = "public"
    bastion: str | None = None
    ssh_from: str | None = None
    instance_profile: str | None = None
    profile: str | None = None
    python: str | None = None
    idle_timeout: float | None = 3600.0
    grace: float = 900.0
    watch_every: int = 30
    spot_or_on_demand: bool = False

    name = "aws"
    default_nodes = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if self.addresses not in ("public", "private"):
            raise UsageError(
                f'addresses={self.addresses!r}: type addresses="public" or addresses="private".'
            )

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what AWS does not have, before anything is made there."""
        ssh = SSH(["instance"], python=self.python)
        warnings = ssh.check(replace(spec, nodes=1), preload)
        self.find_offers(spec)
        self.clients().user  # noqa: B018 - asked once, and kept
        return warnings

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Rent instances, wait until they let us in, and make nodes of them."""
        here = await in_thread(self.clients)
        work = Cancellable(progress)
        try:
            rented = await work.run(lambda: self._rent(here, spec, identity, work.report))
            is_spot = rented[0].is_spot
            bootstrap = self._bootstrap(here.location, identity, self.bastion, is_spot)
            return await bootstrap.launch(rented, spec, preload, work.report)
        except BaseException:
            await work.stop()
            progress("releasing everything")
            await asyncio.shield(self.release_cluster(identity, here.location, progress))
            raise

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""
        return Instance.from_row(row)

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Rent more instances like those that the cluster has, in the same zone."""
        like = _instance(running.machines[0])
        there = await in_thread(clients_at, like.location)
        work = Cancellable(progress)
        rented: list[RentedInstance] = []
        number = uuid.uuid4().hex
        if trouble := await in_thread(like.let_in):
            raise SkyError(f"{like.host} cannot be reached: {trouble}.")
        budget = await in_thread(Budget.of, running)
        try:
            await work.run(
                lambda: rented.extend(self._rent_more(there, running, budget, number, work.report))
            )
            bootstrap = self._bootstrap(like.location, like.cluster, like.bastion, like.spot)
            return await bootstrap.add_nodes(rented, running, work.report)
        except BaseException:
            await work.stop()
            progress("releasing what was rented")
            ids = [each.id for each in rented]
            terminate = in_thread(release.terminate, there, like.cluster, ids, number)
            try:
                await asyncio.shield(terminate)
            finally:
                await asyncio.shield(in_thread(budget.share_as_before))
            raise

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Terminate instances, and return when AWS says that they are."""
        by_cluster: dict[tuple[str, str], list[str]] = {}
        for each in map(_instance, machines):
            by_cluster.setdefault((each.location, each.cluster), []).append(each.id)
        for (location, cluster), ids in by_cluster.items():
            there = await in_thread(clients_at, location)
            await in_thread(release.terminate, there, cluster, ids)

    def location(self) -> str:
        """Return the region and the profile, so that the registry knows where to look."""
        return self.clients().location

    async def release_cluster(
        self, identity: str, location: str | None, progress: Progress
    ) -> None:
        """Terminate the instances of a cluster and remove all else that it has at AWS.

        Raises
        ------
        SkyError
            When something may still be there.
        """
        there = await (in_thread(clients_at, location) if location else in_thread(self.clients))
        await in_thread(release.release, there, identity, progress)

    async def ended_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when instances have ended, as far as AWS still knows; else now."""
        return await in_thread(inventory.ended_at, [*map(_instance, machines)])

    async def list_resources(
        self, everywhere: bool = False
    ) -> tuple[list[CloudResources], list[str]]:
        """Return what clusters have at all locations, and which of these cannot be looked at."""
        return await in_thread(inventory.list_resources, everywhere)

    async def release_strays(self, identity: str, location: str, instances: Sequence[str]) -> None:
        """Terminate instances that a cluster does not know of."""
        there = await in_thread(clients_at, location)
        await in_thread(release.terminate, there, identity, instances)

    async def remove_unused(self) -> list[str]:
        """Remove what is left of snapshots, and list those that are there and what they cost."""
        return await in_thread(inventory.remove_unused)

    # What only AWS has

    def find_offers(self, spec: ClusterSpec) -> list[InstanceOffer]:
        """Return what fits, cheapest first."""
        return find_offers(self.clients(), self._requirements(spec))

    def price_of(self, spec: ClusterSpec) -> float | None:
        """Return the dollars an hour that the cheapest instances cost which fit."""
        price = self.find_offers(spec)[0].price
        return None if price is None else price * spec.nodes

    def offers_table(self, spec: ClusterSpec) -> str:
        """Return a table of what fits, cheapest first."""
        return offers_table(self.clients(), self._requirements(spec))

    def diagnose(self) -> Iterator[CheckResult]:
        """Check whether AWS can be used from here, one thing after the other."""
        return doctor.diagnose(self.region, self.profile)

    def policy(self) -> str:
        """Return the IAM policy that the user needs."""
        partition = "aws"
        with contextlib.suppress(SkyError):
            partition = iam_policy.partition_of(self.clients().region)
        return iam_policy.policy(self.instance_profile, partition)

    def clients(self) -> Clients:
        """Return the clients of the provider's region and profile."""
        return clients(self.region, self.profile)

    def _requirements(self, spec: ClusterSpec) -> InstanceRequirements:
        return InstanceRequirements(
            nodes=spec.nodes,
            accelerator=spec.wanted_gpus,
            cpus=None if spec.cpus is None else str(spec.cpus),
            memory=None if spec.memory is None else str(spec.memory),
            instance_type=self.instance_type,
            zone=self.zone,
            spot=self.spot,
            max_price=self.max_price,
        )

    def _bootstrap(
        self, location: str, identity: str, bastion: str | None, spot: bool
    ) -> NodeBootstrap:
        return NodeBootstrap(location, identity, bastion, self.python, self.grace, spot)

    # Renting

    def _rent(
        self, there: Clients, spec: ClusterSpec, identity: str, report: Callable[[str], None]
    ) -> list[RentedInstance]:
        image = snapshots.resolve(there, self.image_id, ask)
        if not self.spot_or_on_demand:
            return self._rent_of(self, there, spec, identity, image, report)
        try:
            spot = replace(self, spot=True)
            return self._rent_of(spot, there, spec, identity, image, report)
        except (launch.NoCapacity, NotOffered) as error:
            # The price is another one: it is said again, and asked for where it is high.
            report(f"there is no spot ({str(error).splitlines()[0].rstrip('.')}): on demand")
            usual = replace(self, spot=False)
            return self._rent_of(usual, there, spec, identity, image, report)

    def _rent_of(
        self,
        chosen: AWS,
        there: Clients,
        spec: ClusterSpec,
        identity: str,
        image: str | None,
        report: Callable[[str], None],
    ) -> list[RentedInstance]:
        """Rent of what a provider wants that is this one, but for the market."""
        report("choosing machines")
        fitting = find_offers(there, chosen._requirements(spec))
        acceptable = [each for each in fitting if is_as_cheap(each, fitting[0])]
        if self.max_cost is not None:
            acceptable = where_price_is_known(acceptable, prices.is_denied(there))
        limits = chosen._limits(spec)
        idle = spec.idle_timeout
        confirm_price(spec.nodes, acceptable, self.max_price, self.ask_above, report, idle)
        local_store.add_location(there.location)
        request = self._request(there, spec, identity, spec.nodes, acceptable, limits, image)
        rented = launch.rent(there, request, report)
        report(f"{_described(rented)}, {_an_hour(rented)}")
        return rented

    def _limits(self, spec: ClusterSpec) -> Limits:
        return Limits(spec.nodes, self.max_price, self.max_cost, self.ask_above)

    def _rent_more(
        self,
        there: Clients,
        running: RunningCluster,
        budget: Budget,
        number: str,
        report: Callable[[str], None],
    ) -> list[RentedInstance]:
        like = _instance(running.machines[0])
        count, spec = len(running.new_numbers), running.spec
        report("looking up the price of another instance")
        offer = scale_out.offer(there, like)
        if self.max_price is not None:
            check_max_price(self.max_price, spec.nodes, len(running.nodes), offer)
        # What takes the place of a lost node costs what that did.
        if not running.lost:
            confirm_price(spec.nodes, [offer], self.max_price, self.ask_above, report)
        seconds = budget.share_with(count, offer.price)
        limits = replace(self._limits(spec), seconds=seconds)
        request = self._request(there, spec, like.cluster, count, [offer], limits, None)
        user, is_private = like.host.partition("@")[0], like.is_private(there)
        tags = {**request.tags, REQUEST: number}
        request = replace(request, user=user, private=is_private, tags=tags)
        return scale_out.rent(there, request, like, report)

    def _request(
        self,
        there: Clients,
        spec: ClusterSpec,
        identity: str,
        count: int,
        offers: Sequence[InstanceOffer],
        limits: Limits,
        image: str | None,
    ) -> LaunchRequest:
        return LaunchRequest(
            identity=identity,
            nodes=count,
            tags=cluster_tags(identity, spec.name, there.user),
            offers=offers,
            image_id=image,
            user=self.user,
            installed=snapshots.content(spec.image, self.python, self.image_id),
            disk=self.disk,
            subnet=self.subnet,
            private=self.addresses == "private",
            ssh_from=self.ssh_from,
            profile=self.instance_profile,
            together=spec.nodes > 1,
            limits=limits,
            watch_every=self.watch_every,
        )


def _instance(machine: Machine) -> Instance:
    assert isinstance(machine, Instance)
    return machine


def _described(rented: Sequence[RentedInstance]) -> str:
    first = rented[0]
    return f"{len(rented)} × {first.type} in {first.zone}"


def _an_hour(rented: Sequence[RentedInstance]) -> str:
    prices = [each.price for each in rented if each.price is not None]
    return f"{format_dollars(sum(prices))} an hour" if prices else "price unknown"
