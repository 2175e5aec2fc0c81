"""The AWS provider: from what a person asks for to instances with agents, and back to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.providers.aws import doctor, local_store
from jupyter_sky.providers.aws.budget import Budget
from jupyter_sky.providers.aws.cancellable import Cancellable
from jupyter_sky.providers.aws.clients import Clients, clients, clients_at
from jupyter_sky.providers.aws.ec2 import launch, scale_out, snapshots, teardown
from jupyter_sky.providers.aws.ec2.bootstrap import NodeMaker
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.launch import Rented
from jupyter_sky.providers.aws.ec2.launch_request import Order
from jupyter_sky.providers.aws.ec2.tags import tags
from jupyter_sky.providers.aws.market import offers
from jupyter_sky.providers.aws.market.confirmation import agree, stay_below
from jupyter_sky.providers.aws.market.selection import Offer, Wish
from jupyter_sky.providers.base import Growth, Holding, Machine, Progress, Standing
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh import SSH
from jupyter_sky.providers.ssh.machine import in_thread

_DEARER = 1.5
"""How much more than the first choice another type may cost that is taken in its place."""

_USUAL_DISK = 100  # GB: the Deep Learning image takes more than half of it


@dataclass(frozen=True)
class AWS:
    """Nodes that are instances of EC2.

    Credentials are those of AWS's own tools; they stay on this computer.

    Parameters
    ----------
    region, zone
        Where; by default the region of the AWS configuration, and any of its zones.
    instance_type
        The type of machine, in place of the cheapest that fits.
    spot
        Whether to take machines that cost less and may be taken away.
    max_price
        Dollars an hour that all nodes together may cost.
    max_cost
        Dollars after which the machines power off by themselves, whatever goes on.
    ask_above
        Dollars an hour above which the person is asked first; ``max_price`` answers as well.
    image_id, user
        An image, and whom it lets in, in place of the newest Ubuntu.
    disk
        Gigabytes of disk on each machine.
    subnet
        The subnet to be in, in place of the default network.
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
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    watch_every
        Seconds between two looks of a machine at whether it is still needed.
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
    disk: int = _USUAL_DISK
    subnet: str | None = None
    addresses: str = "public"
    bastion: str | None = None
    ssh_from: str | None = None
    instance_profile: str | None = None
    profile: str | None = None
    python: str | None = None
    grace: float = 900.0
    watch_every: int = 30

    name = "aws"
    usual_nodes = 1

    def __post_init__(self) -> None:
        if self.addresses not in ("public", "private"):
            raise UsageError(
                f'addresses={self.addresses!r}: type addresses="public" or addresses="private".'
            )

    def place(self) -> str:
        """Return the region and the profile, so that the registry knows where to look."""
        return self.clients().place

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what AWS does not have, before anything is made there."""
        ssh = SSH(["instance"], python=self.python)
        warnings = ssh.check(replace(spec, nodes=1), preload)
        offers.find(self.clients(), self._wish(spec))
        return warnings

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Rent instances, wait until they let us in, and make them nodes."""
        here = await in_thread(self.clients)
        work = Cancellable(progress)
        try:
            rented = await work.do(lambda: self._rent(here, spec, identity, work.say))
            make = self._maker(here.place, identity, self.bastion, self.spot)
            return await make.launch(rented, spec, preload, work.say)
        except BaseException:
            await work.stop()
            progress("giving everything back")
            await asyncio.shield(self.release(identity, here.place, progress))
            raise

    async def grow(self, standing: Standing, progress: Progress) -> Growth:
        """Rent more instances like those that the cluster has, in the same zone."""
        like = standing.machines[0]
        assert isinstance(like, Instance)
        there = await in_thread(clients_at, like.place)
        work = Cancellable(progress)
        rented: list[Rented] = []
        budget = await in_thread(Budget.of, standing)
        try:
            await work.do(lambda: rented.extend(self._rent_more(there, standing, budget, work.say)))
            make = self._maker(like.place, like.cluster, like.bastion, like.spot)
            return await make.grow(rented, standing, work.say)
        except BaseException:
            await work.stop()
            progress("giving back what was rented")
            numbers = [each.id for each in rented]
            await asyncio.shield(in_thread(teardown.terminate, there, numbers))
            await asyncio.shield(in_thread(budget.share_as_before))
            raise

    async def give_back(self, machines: Sequence[Machine]) -> None:
        """Terminate instances, and return when AWS says that they are."""
        places: dict[str, list[str]] = {}
        for each in machines:
            assert isinstance(each, Instance)
            places.setdefault(each.place, []).append(each.id)
        for place, numbers in places.items():
            there = await in_thread(clients_at, place)
            await in_thread(teardown.terminate, there, numbers)

    async def release(self, identity: str, place: str | None, progress: Progress) -> None:
        """Terminate the instances of a cluster and remove all else that it has at AWS.

        Raises
        ------
        SkyError
            When something may still be there.
        """
        there = await in_thread(clients_at, place) if place else await in_thread(self.clients)
        await in_thread(teardown.give_back, there, identity, progress)

    async def holdings(self) -> tuple[list[Holding], list[str]]:
        """Return what clusters have where there has ever been one, and what cannot be looked at."""
        found: dict[str, Holding] = {}
        trouble = []
        for place in local_store.places():
            try:
                there = await in_thread(clients_at, place)
                for each in await in_thread(teardown.find, there):
                    is_ours = each.owner == local_store.owner()
                    holding = Holding(each.id, each.name, place, each.what, is_ours, each.by)
                    # One account may be known by several profiles.
                    found.setdefault(each.id, holding)
            except SkyError as error:
                trouble.append(f"what is rented in {place} cannot be looked at: {error}")
        return list(found.values()), trouble

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""
        return Instance.of(row)

    def examine(self) -> Iterator[tuple[str, str, str]]:
        """Check one thing after the other; yield its name, what was found, and what mends it."""
        return doctor.examine(self.region, self.profile)

    def find(self, spec: ClusterSpec) -> list[Offer]:
        """Return what fits, cheapest first."""
        return offers.find(self.clients(), self._wish(spec))

    def offers(self, spec: ClusterSpec) -> str:
        """Return a table of what fits, cheapest first."""
        return offers.table(self.clients(), self._wish(spec))

    async def upkeep(self) -> list[str]:
        """Remove what is left of snapshots, and say which are there and what they cost."""
        said = []
        for place in local_store.places():
            try:
                there = await in_thread(clients_at, place)
                for each in await in_thread(snapshots.every, there):
                    if each.image:
                        said.append(
                            f"kept: the snapshot {each} in {place}; "
                            f"`%sky snapshot --remove {each.name}` removes it"
                        )
                    else:
                        await in_thread(snapshots.remove, there, each.name)
                        said.append(f"removed what was left of the snapshot {each.name}")
            except SkyError as error:
                said.append(f"the snapshots in {place} cannot be looked at: {error}")
        return said

    def clients(self) -> Clients:
        return clients(self.region, self.profile)

    def _wish(self, spec: ClusterSpec) -> Wish:
        return Wish.of(
            spec,
            instance_type=self.instance_type,
            zone=self.zone,
            spot=self.spot,
            max_price=self.max_price,
        )

    def _maker(self, place: str, identity: str, bastion: str | None, spot: bool) -> NodeMaker:
        return NodeMaker(place, identity, bastion, self.python, self.grace, spot)

    # Renting

    def _rent(
        self, there: Clients, spec: ClusterSpec, identity: str, say: Callable[[str], None]
    ) -> list[Rented]:
        say("choosing machines")
        fitting = offers.find(there, self._wish(spec))
        acceptable = [each for each in fitting if _is_as_cheap(each, fitting[0])]
        if self.max_cost is not None:
            acceptable = _where_price_is_known(acceptable)
        agree(spec.nodes, acceptable, self.max_price, self.ask_above, say)
        local_store.remember(there.place)
        order = self._order(spec, identity, spec.nodes, acceptable, self._lifetime)
        rented = launch.rent(there, order, say)
        say(f"{_described(rented)}, {_an_hour(rented)}")
        return rented

    def _rent_more(
        self, there: Clients, standing: Standing, budget: Budget, say: Callable[[str], None]
    ) -> list[Rented]:
        like = standing.machines[0]
        assert isinstance(like, Instance)
        count, spec = len(standing.numbers), standing.spec
        say("looking at what another machine costs")
        offer = scale_out.offer(there, like)
        if self.max_price is not None:
            stay_below(self.max_price, spec.nodes, len(standing.nodes), offer)
        # What takes the place of a lost node costs what that did.
        if not standing.lost:
            agree(spec.nodes, [offer], self.max_price, self.ask_above, say)
        seconds = budget.share_with(count, offer.price)
        order = self._order(spec, like.cluster, count, [offer], lambda price: seconds)
        order = replace(order, user=like.host.partition("@")[0], private=like.is_private(there))
        return scale_out.rent(there, order, like, say)

    def _order(
        self,
        spec: ClusterSpec,
        identity: str,
        count: int,
        choice: Sequence[Offer],
        lifetime: Callable[[float | None], float | None],
    ) -> Order:
        return Order(
            identity=identity,
            nodes=count,
            marks=tags(identity, spec.name),
            offers=choice,
            image_id=self.image_id,
            user=self.user,
            installed=snapshots.content(spec.image, self.python, self.image_id),
            disk=self.disk,
            subnet=self.subnet,
            private=self.addresses == "private",
            ssh_from=self.ssh_from,
            profile=self.instance_profile,
            together=spec.nodes > 1,
            lifetime=lifetime,
            watch_every=self.watch_every,
        )

    def _lifetime(self, price: float | None) -> float | None:
        if self.max_cost is None or not price:
            return None
        return max(1.0, 3600 * self.max_cost / price)


def _is_as_cheap(offer: Offer, first: Offer) -> bool:
    if first.price is None or offer.price is None:
        return first.price is None and offer is first
    return offer.price <= _DEARER * first.price


def _where_price_is_known(choice: Sequence[Offer]) -> list[Offer]:
    """Leave out zones in which ``--max-cost`` cannot hold."""
    first = choice[0]
    if first.price is None:
        instead = "leave it out, or ask for the permission pricing:GetProducts."
        if first.spot:
            instead = "leave out --spot, or name another --zone."
        raise UsageError(
            f"AWS does not tell what {first.type.name} costs, so --max-cost cannot hold: {instead}"
        )
    return [
        replace(each, prices={zone: p for zone, p in each.prices.items() if p is not None})
        for each in choice
    ]


def _described(rented: Sequence[Rented]) -> str:
    first = rented[0]
    return f"{len(rented)} × {first.type} in {first.zone}"


def _an_hour(rented: Sequence[Rented]) -> str:
    prices = [each.price for each in rented if each.price is not None]
    return f"{format_dollars(sum(prices))} an hour" if prices else "price unknown"
