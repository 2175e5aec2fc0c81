"""Which types of machine fit what was asked for, cheapest first. Nothing here talks to AWS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.clients import near
from jupyter_sky.providers.aws.market.instance_types import Catalog, InstanceType
from jupyter_sky.providers.spec import Accelerator, ClusterSpec

_USUAL_CPUS = "4+"
_USUAL_GB_PER_CPU = 4


@dataclass(frozen=True)
class Wish:
    """What the nodes should be.

    Attributes
    ----------
    accelerator
        The least that each has; the name without a memory size fits all sizes of it.
    cpus, memory
        Exactly (``"8"``) or at least (``"8+"``).
    max_price
        Dollars an hour, for all nodes.
    """

    nodes: int = 1
    accelerator: Accelerator | None = None
    cpus: str | None = None
    memory: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    spot: bool = False
    max_price: float | None = None

    @classmethod
    def of(cls, spec: ClusterSpec, **more: object) -> Wish:
        """Return what a cluster's specification asks for."""
        wanted = spec.accelerator
        accelerator = Accelerator(wanted) if isinstance(wanted, str) else wanted
        return cls(spec.nodes, accelerator, spec.cpus, spec.memory, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Offer:
    """A type of machine in the zones where it is, with what one costs an hour.

    Attributes
    ----------
    prices
        Dollars by zone, cheapest zone first; ``None`` where AWS did not tell.
    """

    type: InstanceType
    spot: bool
    prices: Mapping[str, float | None]

    @property
    def price(self) -> float | None:
        """What one costs in the cheapest zone."""
        return next(iter(self.prices.values()))


def choose(
    wish: Wish,
    catalog: Catalog,
    on_demand: Mapping[str, float],
    spot: Mapping[tuple[str, str], float],
) -> list[Offer]:
    """Return what fits, cheapest first; what has no known price comes last.

    Raises
    ------
    UsageError
        When nothing does; the sentence says what comes near.
    """
    fitting = _fitting(wish, catalog)
    if wish.spot and not (fitting := [each for each in fitting if each.has_spot]):
        raise UsageError(f"what fits is not there as spot in {catalog.region}: leave out --spot.")
    if wish.zone is not None:
        fitting = _in_zone(wish.zone, fitting, catalog)
    offers = [_offer(each, wish, on_demand, spot) for each in fitting]
    offers.sort(key=lambda offer: (_or_infinite(offer.price), offer.type.cpus, offer.type.name))
    return _affordable(wish, offers)


def fitting_types(wish: Wish, catalog: Catalog) -> list[InstanceType]:
    """Return the types that fit, whatever they cost; `choose` says when none does."""
    return _fitting(wish, catalog)


def _fitting(wish: Wish, catalog: Catalog) -> list[InstanceType]:
    if wish.instance_type is not None:
        fitting = [_named(wish.instance_type, wish.accelerator, catalog)]
    elif wish.accelerator is not None:
        fitting = _with_accelerator(wish.accelerator, catalog)
    else:
        cpus = wish.cpus or (None if wish.memory else _USUAL_CPUS)
        fitting = [
            each
            for each in catalog.types.values()
            if each.is_plain
            and each.architecture == "x86_64"
            and _enough(cpus, each.cpus)
            and (wish.memory or each.memory >= _USUAL_GB_PER_CPU * each.cpus)
        ]
    found = [
        each
        for each in fitting
        if _enough(wish.cpus, each.cpus) and _enough(wish.memory, each.memory)
    ]
    if found:
        return found
    asked = " and ".join(
        f"--{name} {value}"
        for name, value in (("cpus", wish.cpus), ("memory", wish.memory))
        if value
    )
    sizes = sorted({(each.cpus, round(each.memory)) for each in fitting})
    has = ", ".join(f"{cpus} CPUs with {memory} GB" for cpus, memory in sizes[:4])
    instead = f"there are {has}" if sizes else 'a number with + ("8+") takes what is larger as well'
    raise UsageError(f"no type of machine in {catalog.region} has {asked}: {instead}.")


def _named(name: str, wanted: Accelerator | None, catalog: Catalog) -> InstanceType:
    found = catalog.types.get(name.lower())
    if found is None:
        instead = near(name, catalog.types, otherwise="type one like g6.xlarge.")
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
            f"AWS has no {wanted.name} in {catalog.region}: {near(wanted.name, known)}"
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
    # A machine with more of them than asked for is taken only where there is none with fewer.
    fewest = min(each.gpus for each in enough)
    return [each for each in enough if each.gpus == fewest]


def _is(wanted: str, gpu: str) -> bool:
    return wanted.lower() == gpu.lower() or gpu.lower().startswith(f"{wanted.lower()}-")


def _not_supported(name: str) -> UsageError:
    return UsageError(
        f"{name} is not programmed in CUDA, and this version has no other way to use it: take a "
        "GPU of NVIDIA, like L4, A100 or H100."
    )


def _in_zone(zone: str, fitting: list[InstanceType], catalog: Catalog) -> list[InstanceType]:
    zones = sorted({each for known in catalog.types.values() for each in known.zones})
    if zone not in zones:
        raise UsageError(f"{catalog.region} has no zone {zone}: {near(zone, zones)}")
    found = [each for each in fitting if zone in each.zones]
    if not found:
        where = ", ".join(sorted({each for known in fitting for each in known.zones}))
        raise UsageError(f"what fits is not in {zone}: it is in {where}.")
    return found


def _offer(
    machine: InstanceType,
    wish: Wish,
    on_demand: Mapping[str, float],
    spot: Mapping[tuple[str, str], float],
) -> Offer:
    zones = [each for each in machine.zones if wish.zone in (None, each)]
    usual = on_demand.get(machine.name)
    prices = {zone: spot.get((machine.name, zone)) if wish.spot else usual for zone in zones}
    ordered = sorted(prices, key=lambda zone: (_or_infinite(prices[zone]), zone))
    return Offer(machine, wish.spot, {zone: prices[zone] for zone in ordered})


def _affordable(wish: Wish, offers: list[Offer]) -> list[Offer]:
    if wish.max_price is None:
        return offers
    most = wish.max_price / wish.nodes
    found = []
    for offer in offers:
        prices = {zone: p for zone, p in offer.prices.items() if p is not None and p <= most}
        if prices:
            found.append(Offer(offer.type, offer.spot, prices))
    if found:
        return found
    price = offers[0].price
    if price is None:
        raise UsageError(
            "AWS does not tell its prices to you, so --max-price cannot hold: leave it out, or ask "
            "for the permission pricing:GetProducts."
        )
    nodes = f"{wish.nodes} of them cost" if wish.nodes > 1 else "it costs"
    instead = "" if wish.spot else ", or try --spot"
    raise UsageError(
        f"the cheapest that fits is {offers[0].type.name}, and {nodes} ${wish.nodes * price:,.2f} "
        f"an hour: raise --max-price{instead}."
    )


def _enough(wanted: str | None, here: float) -> bool:
    if wanted is None:
        return True
    amount = float(wanted.rstrip("+"))
    return here >= amount if wanted.endswith("+") else here == amount


def _or_infinite(price: float | None) -> float:
    return math.inf if price is None else price
