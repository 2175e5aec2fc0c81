"""A look at whether AWS can be used from here, one thing after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import Clients, clients, explained
from jupyter_sky.providers.aws.ec2 import network, snapshots
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import catalog


def examine(region: str | None, profile: str | None) -> Iterator[tuple[str, str, str]]:
    """Check one thing after the other; yield its name, what was found, and what mends it."""
    try:
        there = clients(region, profile)
    except SkyError as error:
        yield "AWS", "cannot be used", f"{error}"
        return
    yield "region", there.region, ""
    for name, look in _LOOKS.items():
        try:
            yield (name, *look(there))
        except SkyError as error:
            yield name, "cannot be used", f"{error}"


def _identity(there: Clients) -> tuple[str, str]:
    with explained():
        return str(there.sts.get_caller_identity()["Arn"]), ""


def _machines(there: Clients) -> tuple[str, str]:
    types = catalog(there).types.values()
    gpus = sorted({each.gpu for each in types if each.gpu and each.is_cuda})
    return f"{len(types)} types, with {', '.join(gpus)}", ""


def _prices(there: Clients) -> tuple[str, str]:
    known, age = prices.on_demand(there)
    if not known:
        return "not shown to you", "ask for the permission pricing:GetProducts."
    return f"of {len(known)} types, {age / 3600:.0f} h old", ""


def _network(there: Clients) -> tuple[str, str]:
    return f"default subnets in {', '.join(network.subnets(there, None))}", ""


def _snapshots(there: Clients) -> tuple[str, str]:
    return "; ".join(map(str, snapshots.every(there))) or "none", ""


_LOOKS: dict[str, Callable[[Clients], tuple[str, str]]] = {
    "you": _identity,
    "machines": _machines,
    "prices": _prices,
    "network": _network,
    "snapshots": _snapshots,
}
