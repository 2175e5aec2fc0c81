"""The AWS provider: from what a person asks for to instances with agents, and back to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import doctor, holdings, launch, offers, store
from jupyter_sky.providers.aws.choose import Offer, Wish
from jupyter_sky.providers.aws.client import Clients, clients
from jupyter_sky.providers.aws.instance import Instance, reach, renew
from jupyter_sky.providers.aws.keys import keys_of
from jupyter_sky.providers.aws.launch import Order, Rented
from jupyter_sky.providers.aws.tags import tags
from jupyter_sky.providers.machine import Holding, Machine, Progress
from jupyter_sky.providers.money import dollars
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.providers.ssh import SSH
from jupyter_sky.providers.ssh.machine import in_thread
from jupyter_sky.transport import background

_DEARER = 1.5
"""How much more than the first choice another type may cost that is taken in its place."""

_USUAL_DISK = 100  # GB: the Deep Learning image takes more than half of it


class Stopped(SkyError):
    """The launch was stopped by the person."""


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
        """Return the region, so that the registry knows where to look."""
        return self._clients().region

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what AWS does not have, before anything is made there."""
        ssh = SSH(["instance"], python=self.python)
        warnings = ssh.check(replace(spec, nodes=1), preload)
        offers.find(self._clients(), self._wish(spec))
        return warnings

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Rent instances, wait until they let us in, and make them nodes."""
        stop = threading.Event()

        def say(text: str) -> None:
            if stop.is_set():
                raise Stopped("it was stopped.")
            progress(text)

        here = await in_thread(self._clients)
        work = asyncio.get_running_loop().run_in_executor(
            None, self._rent, here, spec, identity, say
        )
        try:
            rented = await asyncio.shield(work)
            return await self._make_nodes(here.region, spec, identity, preload, rented, say)
        except BaseException:
            stop.set()
            with contextlib.suppress(Exception):
                await asyncio.shield(work)
            progress("giving everything back")
            await asyncio.shield(self.release(identity, here.region, progress))
            raise

    async def release(self, identity: str, place: str | None, progress: Progress) -> None:
        """Terminate the instances of a cluster and remove all else that it has at AWS.

        Raises
        ------
        SkyError
            When something may still be there.
        """
        there = await in_thread(replace(self, region=place or self.region)._clients)
        await in_thread(holdings.give_back, there, identity, progress)

    async def holdings(self) -> list[Holding]:
        """Return what clusters have at AWS, in the regions where there has ever been one."""
        found: list[Holding] = []
        for region in store.regions():
            there = await in_thread(replace(self, region=region)._clients)
            for each in await in_thread(holdings.find, there):
                is_ours = each.owner == store.owner()
                found.append(Holding(each.id, each.name, region, each.what, is_ours, each.by))
        return found

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""
        return Instance.of(row)

    def examine(self) -> Iterator[tuple[str, str, str]]:
        """Check one thing after the other; yield its name, what was found, and what mends it."""
        return doctor.examine(self.region, self.profile)

    def offers(self, spec: ClusterSpec) -> str:
        """Return a table of what fits, cheapest first."""
        return offers.table(self._clients(), self._wish(spec))

    def _clients(self) -> Clients:
        return clients(self.region, self.profile)

    def _wish(self, spec: ClusterSpec) -> Wish:
        return Wish.of(
            spec,
            instance_type=self.instance_type,
            zone=self.zone,
            spot=self.spot,
            max_price=self.max_price,
        )

    # Renting

    def _rent(
        self, there: Clients, spec: ClusterSpec, identity: str, say: Callable[[str], None]
    ) -> list[Rented]:
        say("choosing machines")
        fitting = offers.find(there, self._wish(spec))
        acceptable = [each for each in fitting if _is_as_cheap(each, fitting[0])]
        self._agree(spec.nodes, acceptable, say)
        store.remember_region(there.region)
        order = Order(
            identity=identity,
            nodes=spec.nodes,
            marks=tags(identity, spec.name),
            offers=acceptable,
            image_id=self.image_id,
            user=self.user,
            disk=self.disk,
            subnet=self.subnet,
            private=self.addresses == "private",
            ssh_from=self.ssh_from,
            profile=self.instance_profile,
            lifetime=self._lifetime,
            watch_every=self.watch_every,
        )
        rented = launch.rent(there, order, say)
        say(f"{_described(rented)}, {_an_hour(rented)}")
        return rented

    def _agree(self, nodes: int, choice: Sequence[Offer], say: Callable[[str], None]) -> None:
        """Show the price, and ask the person above the threshold."""
        first, price = choice[0], choice[0].price
        what = f"{nodes} × {first.type.name}{' spot' if first.spot else ''}"
        if price is None:
            if self.max_cost is not None:
                raise UsageError(
                    f"AWS does not tell what {first.type.name} costs, so --max-cost cannot hold: "
                    "leave it out, or ask for the permission pricing:GetProducts."
                )
            cost, most = "at a price that AWS does not tell", float("inf")
        else:
            known = [p for each in choice for p in each.prices.values() if p is not None]
            most = nodes * max(known)
            cost = f"for {dollars(nodes * price)} an hour"
            if most > nodes * price:
                cost += f" (at most {dollars(most)}, if another type has to do)"
        say(f"{what} {cost}")
        if self.max_price is not None or most <= self.ask_above:
            return
        question = f"Start {what} {cost}? [y/N] "
        otherwise = "say `--max-price` with the dollars an hour that you agree to"
        try:
            answer = background.ask(input, question)
        except (background.NobodyWaits, EOFError, NotImplementedError):
            raise UsageError(
                f"{what} {cost} is more than ${self.ask_above:g}, and there is nobody to ask: "
                f"{otherwise}."
            ) from None
        if answer.strip().lower() not in ("y", "yes"):
            raise UsageError(f"nothing was started; to start without a question, {otherwise}.")

    def _lifetime(self, price: float | None) -> float | None:
        if self.max_cost is None or not price:
            return None
        return max(1.0, 3600 * self.max_cost / price)

    # From instances to nodes

    async def _make_nodes(
        self,
        region: str,
        spec: ClusterSpec,
        identity: str,
        preload: Sequence[str],
        rented: Sequence[Rented],
        progress: Progress,
    ) -> list[Machine]:
        keys = keys_of(identity)
        hosts = [f"{each.user}@{each.address}" for each in rented]
        _, boot_key = keys.host_key
        keys.expect({each.address: boot_key for each in rented})

        async def each(function: Callable[..., Any], *more: Any) -> list[Any]:
            jobs = (in_thread(function, host, keys, self.bastion, *more) for host in hosts)
            return list(await asyncio.gather(*jobs))

        await each(reach, progress)
        shown = await each(renew)
        keys.expect({one.address: key for one, key in zip(rented, shown, strict=True)})
        await each(reach, progress, True)
        ssh = SSH(hosts, python=self.python, grace=self.grace)
        machines = await ssh.launch(_as_rented(spec, rented[0]), identity, preload, progress)
        return [
            Instance.on(
                machine,
                nodes=tuple(replace(node, price=each.price) for node in machine.nodes),
                id=each.id,
                cluster=identity,
                region=region,
                type=each.type,
                zone=each.zone,
                profile=self.profile,
                bastion=self.bastion,
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


def _is_as_cheap(offer: Offer, first: Offer) -> bool:
    if first.price is None or offer.price is None:
        return first.price is None and offer is first
    return offer.price <= _DEARER * first.price


def _described(rented: Sequence[Rented]) -> str:
    first = rented[0]
    return f"{len(rented)} × {first.type} in {first.zone}"


def _an_hour(rented: Sequence[Rented]) -> str:
    prices = [each.price for each in rented if each.price is not None]
    return f"{dollars(sum(prices))} an hour" if prices else "price unknown"
