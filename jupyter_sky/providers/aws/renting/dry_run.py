"""What would be rented, made and paid, for ``--dry-run``: AWS is asked, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import aligned, format_count, format_dollars, format_duration
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.images import MachineImage
from jupyter_sky.providers.aws.ec2.launch import attempts_of, image_for
from jupyter_sky.providers.aws.ec2.launch_request import LaunchRequest
from jupyter_sky.providers.aws.market.besides import of_disks
from jupyter_sky.providers.aws.market.confirmation import described
from jupyter_sky.providers.aws.market.quotas import quota_use
from jupyter_sky.providers.aws.market.selection import InstanceOffer, NotOffered
from jupyter_sky.providers.aws.network.security_group import check_group
from jupyter_sky.providers.aws.network.subnets import Subnet, find_subnets
from jupyter_sky.providers.aws.renting import choice
from jupyter_sky.providers.aws.settings import Settings
from jupyter_sky.providers.spec import ClusterSpec

_IDENTITY = "ID"
"""What stands for the id that the cluster would get."""


def plan(there: Clients, settings: Settings, spec: ClusterSpec) -> str:
    """Return what would be rented and made, and what it would cost, as lines.

    Raises
    ------
    SkyError
        When it would not start; the sentence is the one that starting it would say.
    """
    if settings.spot_or_on_demand:
        try:
            on_spot = choice.on_market(settings, spot=True)
            choice.choose(there, on_spot, spec)
            settings = on_spot
        except NotOffered:
            settings = choice.on_market(settings, spot=False)
    offers = choice.choose(there, settings, spec)
    image = snapshots.resolve(there, settings.image_id, lambda question, otherwise: None)
    request = choice.request(there, settings, spec, _IDENTITY, offers, image)
    attempts = attempts_of(request, find_subnets(there, request.subnets))
    machine = image_for(there, request, attempts[0][0].type, lambda text: None)
    offers = [request.priced(each, machine) for each in offers]
    disks = list(request.disks_with(machine).values())
    rows = [
        *_place(there, attempts),
        *_machines(request, attempts, machine),
        *_money(settings, spec, offers),
        ("in the price", request.besides.described(spec.nodes, disks)),
        ("quota", str(quota_use(there, offers[0].type, spec.nodes, offers[0].spot))),
        *(("would be made", each) for each in _made(there, request, disks, attempts[0])),
    ]
    return "\n".join(aligned(rows))


_Attempts = Sequence[tuple[InstanceOffer, Subnet]]
_Rows = Iterator[tuple[str, str]]


def _place(there: Clients, attempts: _Attempts) -> _Rows:
    yield "account", there.number or "unknown"
    yield "you", there.user or "AWS does not tell who you are"
    yield "profile", there.profile or "the usual one"
    yield "region", there.region
    kinds = list(dict.fromkeys(offer.type.name for offer, _ in attempts))
    for kind in kinds:
        zones = [f"{net.zone} ({net.id})" for offer, net in attempts if offer.type.name == kind]
        name = f"{kind} in " if len(kinds) > 1 else ""
        yield "zones, in order", f"{name}{', '.join(zones)}"


def _machines(request: LaunchRequest, attempts: _Attempts, image: MachineImage) -> _Rows:
    kind = attempts[0][0].type
    gpus = f"{kind.gpus} × {kind.gpu}, " if kind.gpu else ""
    size = f"{gpus}{kind.cpus} CPUs, {kind.memory:.0f} GB"
    yield "type", f"{request.nodes} × {kind.name}: {size} each"
    origin = f", the snapshot {image.snapshot}" if image.snapshot else ""
    yield "image", f"{image.id}{origin}, which lets in {image.user}"


def _money(settings: Settings, spec: ClusterSpec, offers: Sequence[InstanceOffer]) -> _Rows:
    what, cost, _ = described(spec.nodes, offers)
    yield "price", f"{what} {cost}"
    price, zone = offers[0].price, next(iter(offers[0].prices))
    ends = []
    if settings.max_cost is not None:
        # What spot may rise to counts, as it does for the machines themselves.
        seconds = choice.limits(settings, spec).lifetime(offers[0], zone)
        spent = format_dollars(settings.max_cost)
        if seconds is not None:
            ends.append(f"{spent} in all, spent after {format_duration(seconds)} at the earliest")
    idle = spec.idle_timeout or settings.idle_timeout
    if idle:
        least = f" (for {format_dollars(spec.nodes * price * idle / 3600)})" if price else ""
        ends.append(f"it ends after {format_duration(idle)} without a run{least}")
    yield "limit", "; ".join(ends) or "none: it costs that until `%sky down`"


def _made(
    there: Clients,
    request: LaunchRequest,
    disks: Sequence[int],
    first: tuple[InstanceOffer, Subnet],
) -> Iterator[str]:
    offer, subnet = first
    try:
        source = request.login_source(subnet)
    except SkyError:
        source = "this computer"
    yield f"the key pair {request.name}"
    if request.security_group is None:
        outside = f"SSH from {source}" if source else "no open port, SSH by Systems Manager"
        yield f"the security group {request.name}: {outside}, and nodes among themselves"
    else:
        group = check_group(there, request.security_group, subnet.vpc, source)
        yield f"no security group: {group} is there"
    if request.is_placed(offer):
        yield f"the placement group {request.name}"
    spot = " spot" if offer.spot else ""
    of = f" of {request.reservation}" if request.reservation else ""
    yield f"{format_count(request.nodes, f'{offer.type.name}{spot} instance')}{of}"
    key = f"your key {request.kms_key}" if request.kms_key else "AWS's key"
    yield f"{of_disks(request.nodes, disks)}, encrypted with {key}"
    efa = ", with EFA" if request.together and offer.type.efa else ""
    address = "a private address" if request.private else "a public address"
    yield f"{format_count(request.nodes, 'network interface')} with {address}{efa}"
    yield "on all of it the tags " + ", ".join(request.tags)
