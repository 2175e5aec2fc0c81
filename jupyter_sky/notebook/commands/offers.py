"""``%sky offers``: the nodes that each provider offers for a new cluster, and their prices.

The sidebar's form shows the same, from ``--json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypedDict

from jupyter_sky.api import accelerators
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.notebook.cluster_factory import regions_of
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import as_line
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.slurm import partitions
from jupyter_sky.providers.slurm.allocation import Allocation
from jupyter_sky.providers.slurm.login import login_node
from jupyter_sky.providers.slurm.provider import Slurm
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop

_SHOWN = 12  # instance types on demand, and as many on the spot market


class ListedOffer(TypedDict):
    """A kind of node; ``Offer`` in the server's ``schema.json``.

    Attributes
    ----------
    description
        A description of the node.
    gpu
        The GPUs of a node, in the syntax of ``--gpu``.
    price
        The price of all nodes in dollars per hour; ``None`` if they are free, or it is not known.
    line
        What to type after ``%%sky``.
    """

    provider: str
    description: str
    gpu: str | None
    price: float | None
    line: str


class OfferList(TypedDict):
    """The offers, cheapest first, and a sentence for each provider that has none.

    ``providers`` are those that can be used here.
    """

    offers: list[ListedOffer]
    notes: list[str]
    providers: list[str]


def offers(context: CommandContext, options: Namespace) -> None:
    """Print offers as text, with a separate table for AWS, or as JSON."""
    session = context.session
    given = {name: value for name, value in vars(options).items() if name != "json"}
    wanted = CellOptions(**given)
    if options.json:
        print(json.dumps(_find(session, wanted), indent=2))
    elif wanted.provider not in (None, "aws"):
        print("\n".join([_as_lines(_find(session, wanted)), *_accounts(session, wanted)]))
    else:
        chosen = session.settings.with_cluster_defaults(wanted)
        for each in regions_of(chosen):
            print(session.factory.aws(each).offers_table(_spec(each)))


def _find(session: Session, wanted: CellOptions) -> OfferList:
    """Return offers for ``wanted``, from one provider if it names one."""
    found: list[ListedOffer] = []
    notes = []
    here = [name for name in _PROVIDERS if _may_have(session, name)]
    for name, provider_offers in _PROVIDERS.items():
        if wanted.provider == name or (wanted.provider is None and name in here):
            try:
                found += provider_offers(session, replace(wanted, provider=name))
            except SkyError as why:
                notes.append(f"{name}: {why}")
    found.sort(key=lambda offer: offer["price"] or 0.0)
    return {"offers": found, "notes": notes, "providers": here}


def _as_lines(found: OfferList) -> str:
    lines = [f"{each['description']}: `%%sky {each['line']}`" for each in found["offers"]]
    return "\n".join([*lines, *found["notes"]])


def _accounts(session: Session, wanted: CellOptions) -> list[str]:
    """Return the user's accounts, if offers of a provider with accounts are shown."""
    provider = session.factory.provider(session.settings.with_cluster_defaults(wanted))
    if not isinstance(provider, Slurm):
        return []
    yours = event_loop.wait(partitions.accounts(login_node(provider.login)))
    return [f"account {each}" for each in yours]


def _local(session: Session, wanted: CellOptions) -> Iterator[ListedOffer]:
    Local().check(_spec(wanted), ())
    settings = session.settings
    # The line has to name the provider only if the settings name another one.
    elsewhere = settings.hosts or settings.provider not in (None, "local")
    provider = "local" if elsewhere else None
    line = replace(wanted, provider=provider, nodes=wanted.nodes or 1)
    processors = f"this computer, {os.cpu_count()} CPUs"
    yield ListedOffer(
        provider="local",
        description=processors,
        gpu=wanted.gpu,
        price=None,
        line=as_line(line),
    )


def _ssh(session: Session, wanted: CellOptions) -> Iterator[ListedOffer]:
    if not session.settings.groups:
        raise SkyError(
            "no groups of hosts are configured: name them, as in "
            "`c.Sky.groups = {'lab': ['gpu1', 'gpu2:4']}` in ipython_config.py, or type `--hosts`."
        )
    for name, hosts in session.settings.groups.items():
        other = session.settings.provider not in (None, "ssh")
        provider = "ssh" if other else None
        line = as_line(CellOptions(provider=provider, hosts=(name,), gpu=wanted.gpu))
        yield ListedOffer(
            provider="ssh",
            description=f"{name}: {_first_hosts(hosts)}",
            gpu=wanted.gpu,
            price=None,
            line=line,
        )


def _aws(session: Session, wanted: CellOptions) -> Iterator[ListedOffer]:
    for spot in (True,) if wanted.spot else (False, True):
        options = session.settings.with_cluster_defaults(replace(wanted, spot=spot))
        here = regions_of(options)[0]
        for each in session.factory.aws(here).find_offers(_spec(wanted))[:_SHOWN]:
            instance = each.type
            gpus = f"{instance.gpus} × {instance.gpu}, " if instance.gpu else ""
            size = f"{instance.cpus} CPUs, {instance.memory:.0f} GB"
            yield ListedOffer(
                provider="aws",
                description=f"{instance.name}{' spot' * spot}: {gpus}{size}",
                gpu=f"{instance.gpu}:{instance.gpus}" if instance.gpu else None,
                price=None if each.price is None else each.price * (wanted.nodes or 1),
                line=as_line(replace(wanted, instance_type=instance.name, spot=spot)),
            )


def _may_have(session: Session, provider: str) -> bool:
    """Return whether a provider that was not named may have offers, or a hint how to enable it."""
    has_slurm = session.settings.login or shutil.which("sinfo") is not None
    return provider != "slurm" or bool(has_slurm)


def _slurm(session: Session, wanted: CellOptions) -> Iterator[ListedOffer]:
    spec = _spec(wanted)
    provider = session.factory.provider(session.settings.with_cluster_defaults(wanted))
    if isinstance(provider, Slurm) and (has := provider.own_allocation()):
        yield from _of_own_job(has, spec, wanted)
    login = provider.login if isinstance(provider, Slurm) else None
    there = event_loop.wait(partitions.node_kinds(login_node(login)))
    kinds = [each for each in there if each.nodes >= spec.nodes]
    asked = spec.wanted_gpus
    if asked is not None:
        kinds = [each for each in kinds if partitions.fits(asked, each.gpu, each.gpus)]
    if not kinds:
        gpus = f" with {asked}" if asked else ""
        raise SkyError(
            f"no partition has {format_count(spec.nodes, 'equal node')}{gpus}: "
            "`%sky doctor --provider slurm` shows those that there are."
        )
    # The form proposes the first one.
    for kind in sorted(kinds, key=lambda each: not each.is_default):
        gpu = _gpu_word(kind.gpu, kind.gpus)
        line = replace(wanted, partition=kind.partition)
        if asked is None and kind.gpus:
            # A job gets only the GPUs that it asks for.
            yield _slurm_offer(f"{replace(kind, gpus=0)}", None, line)
            line = replace(line, gpu=gpu)
        if line.gpu or not kind.gpus:
            yield _slurm_offer(f"{kind}", gpu, line)


def _of_own_job(has: Allocation, spec: ClusterSpec, wanted: CellOptions) -> Iterator[ListedOffer]:
    """Yield the nodes of the notebook's own job, if they fit, since they are available at once."""
    with contextlib.suppress(UsageError):
        has.check(spec)
        gpus = f", {has.gpus} × {(has.gpu or 'GPU').upper()} each" if has.gpus else ""
        size = f"{format_count(has.nodes, 'node')}{gpus}"
        description = f"job {has.job}, in which this notebook runs: {size}"
        yield _slurm_offer(description, _gpu_word(has.gpu, has.gpus), wanted)


def _slurm_offer(description: str, gpu: str | None, line: CellOptions) -> ListedOffer:
    return ListedOffer(
        provider="slurm", description=description, gpu=gpu, price=None, line=as_line(line)
    )


def _gpu_word(device: str | None, count: int) -> str | None:
    """Return GPUs in the syntax of ``--gpu``; ``None`` if that has no name for them."""
    known = [each for each in accelerators.names() if accelerators.parse(each).fits(device or "")]
    return f"{min(known, key=len)}:{count}" if known else None


_PROVIDERS = {"local": _local, "ssh": _ssh, "aws": _aws, "slurm": _slurm}


def _spec(wanted: CellOptions) -> ClusterSpec:
    """Return the specification to find offers for."""
    return ClusterSpec(
        "offers",
        nodes=wanted.nodes or 1,
        accelerator=accelerators.parse(wanted.gpu) if wanted.gpu else None,
        cpus=wanted.cpus,
        memory=wanted.memory,
    )


def _first_hosts(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:4])
    return f"{shown} and {len(hosts) - 4} more" if len(hosts) > 4 else shown
