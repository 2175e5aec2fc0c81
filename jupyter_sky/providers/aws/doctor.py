"""Checks whether AWS can be used from here, for ``%sky doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import Clients, clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.local_store import owner
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import catalog
from jupyter_sky.providers.aws.network import access, security_group, session, subnets
from jupyter_sky.providers.aws.settings import Settings
from jupyter_sky.providers.aws.tags import NAME, OWNER, tags_of
from jupyter_sky.providers.diagnosis import CheckResult

NO_PROFILE = (
    "machines need an instance profile whose role has AmazonSSMManagedInstanceCore: name it, as in "
    "`%config Sky.aws = {'instance_profile': 'my-profile'}`"
)


def diagnose(settings: Settings) -> Iterator[CheckResult]:
    """Check one thing after the other, and yield what was found."""
    if settings.ssm:
        yield _sessions(settings)
    try:
        there = clients(settings.region, settings.profile)
    except SkyError as error:
        yield CheckResult("AWS", "cannot be used", f"{error}")
        return
    yield CheckResult("region", there.region)
    for name, check in _CHECKS.items():
        try:
            yield CheckResult(name, *check(there))
        except SkyError as error:
            yield CheckResult(name, "cannot be used", f"{error}")


def _sessions(settings: Settings) -> CheckResult:
    """Check whether sessions of Systems Manager can be started, as far as this computer knows."""
    no_profile = NO_PROFILE if settings.instance_profile is None else None
    fixes = [each for each in (session.missing_tools(), no_profile) if each is not None]
    found = "cannot be started" if fixes else f"with the profile {settings.instance_profile}"
    return CheckResult("sessions", found, "".join(f"{each}. " for each in fixes).strip())


def _identity(there: Clients) -> tuple[str, str]:
    return there.ask_user(), ""


def _machines(there: Clients) -> tuple[str, str]:
    types = catalog(there).types.values()
    gpus = sorted({each.gpu for each in types if each.gpu and each.is_cuda})
    return f"{len(types)} types, with {', '.join(gpus)}", ""


def _prices(there: Clients) -> tuple[str, str]:
    known, age = prices.on_demand(there)
    if not known and prices.is_denied(there):
        return "you may not read them", "ask for the permission pricing:GetProducts."
    if not known:
        return "AWS does not tell them here: you are asked before each start", ""
    return f"of {len(known)} types, {age / 3600:.0f} h old", ""


def _network(there: Clients) -> tuple[str, str]:
    return (
        f"default subnets in {', '.join(each.zone for each in subnets.find_subnets(there, ()))}",
        "",
    )


def _access(there: Clients) -> tuple[str, str]:
    """Check whether this computer may log in to what was started from here."""
    lets_in, not_in = [], []
    for group in security_group.find_groups(there, "*"):
        tags = tags_of(group)
        if tags.get(OWNER) != owner():
            continue
        name, rules = tags.get(NAME, ""), security_group.who_may_log_in(group)
        lets_in.append(f"{name} lets in {', '.join(rules) or 'nobody at a port'}")
        if now := access.is_elsewhere(group):
            follows = any(rules.values())
            not_in.append(
                f"this computer is at {now} now; "
                + (f"the next cell of {name} lets it in." if follows else "change `ssh_from`.")
            )
    return "; ".join(lets_in) or "no cluster is up", " ".join(not_in)


def _snapshots(there: Clients) -> tuple[str, str]:
    return "; ".join(map(str, snapshots.every(there))) or "none", ""


_CHECKS: dict[str, Callable[[Clients], tuple[str, str]]] = {
    "you": _identity,
    "machines": _machines,
    "prices": _prices,
    "network": _network,
    "access": _access,
    "snapshots": _snapshots,
}
