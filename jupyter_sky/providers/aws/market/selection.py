"""Selects the instance types that fit, cheapest first. Nothing here talks to AWS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import did_you_mean
from jupyter_sky.providers.aws.market.instance_types import Catalog, InstanceType
from jupyter_sky.providers.aws.market.rounding import ROUNDING, format_sufficient
from jupyter_sky.providers.spec import Accelerator

_USUAL_CPUS = "4+"
_USUAL_GB_PER_CPU = 4


class NotOffered(UsageError):
    """Matching types are not on the requested market."""


@dataclass(frozen=True)
class InstanceRequirements:
    """The requirements of nodes.

    Attributes
    ----------
    nodes
        Number of nodes.
    accelerator
        The minimum of each node; a name without a memory size matches all sizes.
    cpus, memory
        Exactly (``"8"``) or at least (``"8+"``).
    instance_type, zone
        The only type and zone to use.
    spot
        Whether spot instances are wanted.
    max_price
        Dollars per hour for all nodes.
    besides
        Dollars per hour of each node's disks and address.
    """

    nodes: int = 1
    accelerator: Accelerator | None = None
    cpus: str | None = None
    memory: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    spot: bool = False
    max_price: float | None = None
    besides: float = 0.0


@dataclass(frozen=True)
class InstanceOffer:
    """An instance type in the zones that offer it, with its prices.

    Attributes
    ----------
    type, spot
        The type, and whether it is spot.
    prices
        Dollars per hour of the instance by zone, cheapest zone first; ``None`` if AWS did not tell.
    reservation, is_block
        Its capacity reservation, if any, and whether that is a Capacity Block, which is paid in
        advance.
    besides
        Dollars per hour of its disks and its address.
    """

    type: InstanceType
    spot: bool
    prices: Mapping[str, float | None]
    reservation: str = ""
    is_block: bool = False
    besides: float = 0.0

    @property
    def price(self) -> float | None:
        """The price of one in the cheapest zone, with its disks and its address."""
        return self.price_in(next(iter(self.prices)))

    def price_in(self, zone: str) -> float | None:
        """Return the price of one in a zone, with its disks and its address."""
        price = self.prices.get(zone)
        return None if price is None else price + self.besides

    @property
    def most(self) -> float | None:
        """The price of one in the dearest zone, with its disks and its address."""
        known = [price for price in self.prices.values() if price is not None]
        return max(known) + self.besides if known else None


def select(
    required: InstanceRequirements,
    catalog: Catalog,
    on_demand: Mapping[str, float],
    spot: Mapping[tuple[str, str], float],
) -> list[InstanceOffer]:
    """Return matching offers, cheapest first; those without a known price come last.

    Raises
    ------
    UsageError
        If nothing fits; the message says what comes close.
    """
    fitting = _fitting(required, catalog)
    if required.spot and not (fitting := [each for each in fitting if each.has_spot]):
        raise NotOffered(f"what fits is not offered as spot in {catalog.region}: leave out --spot.")
    if required.zone is not None:
        fitting = _in_zone(required.zone, fitting, catalog)
    offers = [_offer(each, required, on_demand, spot) for each in fitting]
    offers.sort(key=lambda offer: (_or_infinite(offer.price), offer.type.cpus, offer.type.name))
    return _affordable(required, offers)


def fitting_types(required: InstanceRequirements, catalog: Catalog) -> list[InstanceType]:
    """Return the types that fit, whatever they cost; `select` reports if none does."""
    return _fitting(required, catalog)


def _fitting(required: InstanceRequirements, catalog: Catalog) -> list[InstanceType]:
    if required.instance_type is not None:
        fitting = [_named(required.instance_type, required.accelerator, catalog)]
    elif required.accelerator is not None:
        fitting = _with_accelerator(required.accelerator, catalog)
    else:
        cpus = required.cpus or (None if required.memory else _USUAL_CPUS)
        fitting = [
            each
            for each in catalog.types.values()
            if each.is_plain
            and each.architecture == "x86_64"
            and _enough(cpus, each.cpus)
            and (required.memory or each.memory >= _USUAL_GB_PER_CPU * each.cpus)
        ]
    found = [
        each
        for each in fitting
        if _enough(required.cpus, each.cpus) and _enough(required.memory, each.memory)
    ]
    if found:
        return found
    asked = " and ".join(
        f"--{name} {value}"
        for name, value in (("cpus", required.cpus), ("memory", required.memory))
        if value
    )
    sizes = sorted({(each.cpus, round(each.memory)) for each in fitting})
    has = ", ".join(f"{cpus} CPUs with {memory} GB" for cpus, memory in sizes[:4])
    instead = (
        f"choose from {has}" if sizes else 'a number with + ("8+") takes what is larger as well'
    )
    raise UsageError(f"no instance type in {catalog.region} has {asked}: {instead}.")


def _named(name: str, wanted: Accelerator | None, catalog: Catalog) -> InstanceType:
    found = catalog.types.get(name.lower())
    if found is None:
        instead = did_you_mean(name, catalog.types, otherwise="type one like g6.xlarge.")
        raise UsageError(f"there is no instance type {name} in {catalog.region}: {instead}")
    if found.gpu and not found.is_cuda:
        raise _not_supported(found.gpu)
    if wanted and not (found.gpu and _is(wanted.name, found.gpu) and found.gpus >= wanted.count):
        has = f"{found.gpus} × {found.gpu}" if found.gpu else "no GPU"
        raise UsageError(
            f"{found.name} has {has}, and --gpu asks for {wanted}: leave one of the two out."
        )
    return found


def _with_accelerator(wanted: Accelerator, catalog: Catalog) -> list[InstanceType]:
    named = [each for each in catalog.types.values() if each.gpu and _is(wanted.name, each.gpu)]
    if not named:
        known = sorted({each.gpu for each in catalog.types.values() if each.gpu and each.is_cuda})
        raise UsageError(
            f"AWS has no {wanted.name} in {catalog.region}: {did_you_mean(wanted.name, known)}"
        )
    if not any(each.is_cuda for each in named):
        raise _not_supported(wanted.name)
    enough = [each for each in named if each.gpus >= wanted.count]
    if not enough:
        most = max(each.gpus for each in named)
        raise UsageError(
            f"no machine in {catalog.region} has {wanted.count} × {wanted.name}: the largest has "
            f"{most}, so type `--gpu {wanted.name}:{most}` and take more nodes."
        )
    # A machine with more GPUs than requested is only used if none has fewer.
    fewest = min(each.gpus for each in enough)
    return [each for each in enough if each.gpus == fewest]


def _is(wanted: str, gpu: str) -> bool:
    return wanted.lower() == gpu.lower() or gpu.lower().startswith(f"{wanted.lower()}-")


def _not_supported(name: str) -> UsageError:
    return UsageError(
        f"{name} does not run CUDA, which this version needs: choose an NVIDIA GPU, like L4, A100 "
        f"or H100."
    )


def _in_zone(zone: str, fitting: list[InstanceType], catalog: Catalog) -> list[InstanceType]:
    zones = sorted({each for known in catalog.types.values() for each in known.zones})
    if zone not in zones:
        raise UsageError(f"{catalog.region} has no zone {zone}: {did_you_mean(zone, zones)}")
    found = [each for each in fitting if zone in each.zones]
    if not found:
        where = ", ".join(sorted({each for known in fitting for each in known.zones}))
        raise UsageError(f"what fits is not offered in {zone}: choose {where}.")
    return found


def _offer(
    machine: InstanceType,
    required: InstanceRequirements,
    on_demand: Mapping[str, float],
    spot: Mapping[tuple[str, str], float],
) -> InstanceOffer:
    zones = [each for each in machine.zones if required.zone in (None, each)]
    usual = on_demand.get(machine.name)
    prices = {zone: spot.get((machine.name, zone)) if required.spot else usual for zone in zones}
    ordered = sorted(prices, key=lambda zone: (_or_infinite(prices[zone]), zone))
    found = {zone: prices[zone] for zone in ordered}
    return InstanceOffer(machine, required.spot, found, besides=required.besides)


def _affordable(required: InstanceRequirements, offers: list[InstanceOffer]) -> list[InstanceOffer]:
    if required.max_price is None or not any(
        price is not None for offer in offers for price in offer.prices.values()
    ):
        # If no price is known at all, the user is asked.
        return offers
    most = required.max_price / required.nodes - required.besides + ROUNDING
    found = []
    for offer in offers:
        prices = {zone: p for zone, p in offer.prices.items() if p is not None and p <= most}
        if prices:
            found.append(replace(offer, prices=prices))
    if found:
        return found
    price = offers[0].price or 0.0
    nodes = f"{required.nodes} of them cost" if required.nodes > 1 else "it costs"
    total = format_sufficient(required.nodes * price)
    instead = "" if required.spot else ", or try --spot"
    raise UsageError(
        f"the cheapest that fits is {offers[0].type.name}, and {nodes} {total} an hour: "
        f"raise --max-price{instead}."
    )


def _enough(wanted: str | None, here: float) -> bool:
    if wanted is None:
        return True
    amount = float(wanted.rstrip("+"))
    return here >= amount if wanted.endswith("+") else here == amount


def _or_infinite(price: float | None) -> float:
    return math.inf if price is None else price
