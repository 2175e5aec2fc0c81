"""What a new cluster can be made of, at every provider: the sidebar's form shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.options.definitions import CellOptions, as_line
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec

_SHOWN = 12  # of each kind


@dataclass(frozen=True)
class Offer:
    """One choice.

    Attributes
    ----------
    description
        What a node is, in words.
    gpu
        The GPUs of a node, as ``--gpu`` takes them.
    price
        Of all nodes, in dollars an hour; ``None`` if they cost nothing, or nobody knows.
    line
        What to type behind ``%%sky``.
    """

    provider: str
    description: str
    gpu: str | None
    price: float | None
    line: str


def listing(session: Session, wanted: CellOptions) -> dict[str, Any]:
    """Return offers, cheapest first, and why a provider has none, a sentence each.

    Parameters
    ----------
    session
        Whose settings hold.
    wanted
        Nodes, GPU and so on; of one provider only if it names one.
    """
    found: list[Offer] = []
    notes = []
    for name, offers in _PROVIDERS.items():
        if wanted.provider in (None, name):
            try:
                found += offers(session, replace(wanted, provider=name))
            except SkyError as why:
                notes.append(f"{name}: {why}")
    found.sort(key=lambda offer: offer.price or 0.0)
    return {"offers": [asdict(each) for each in found], "notes": notes}


def _local(session: Session, wanted: CellOptions) -> Iterator[Offer]:
    Local().check(spec(wanted), ())
    settings = session.settings
    # Where cells go elsewhere by default, it has to be said.
    elsewhere = settings.hosts or settings.provider not in (None, "local")
    provider = "local" if elsewhere else None
    line = replace(wanted, provider=provider, nodes=wanted.nodes or 1)
    processors = f"this computer, {os.cpu_count()} CPUs"
    yield Offer("local", processors, wanted.gpu, None, as_line(line))


def _ssh(session: Session, wanted: CellOptions) -> Iterator[Offer]:
    if not session.settings.groups:
        raise SkyError(
            "no groups of hosts are configured: name them, as in "
            "`c.Sky.groups = {'lab': ['gpu1', 'gpu2:4']}` in ipython_config.py, or type `--hosts`."
        )
    for name, hosts in session.settings.groups.items():
        other = session.settings.provider not in (None, "ssh")
        provider = "ssh" if other else None
        line = as_line(CellOptions(provider=provider, hosts=(name,), gpu=wanted.gpu))
        yield Offer("ssh", f"{name}: {_listed(hosts)}", wanted.gpu, None, line)


def _aws(session: Session, wanted: CellOptions) -> Iterator[Offer]:
    for spot in (False, True):
        rented = session.aws(session.settings.with_cluster_defaults(replace(wanted, spot=spot)))
        for each in rented.find(spec(wanted))[:_SHOWN]:
            kind = each.type
            gpu = f"{kind.gpu}:{kind.gpus}" if kind.gpu else None
            what = f"{kind.gpus} × {kind.gpu}, " if kind.gpu else ""
            yield Offer(
                "aws",
                f"{kind.name}{' spot' * spot}: {what}{kind.cpus} CPUs, {kind.memory:.0f} GB",
                gpu,
                None if each.price is None else each.price * (wanted.nodes or 1),
                as_line(replace(wanted, instance_type=kind.name, spot=spot)),
            )


_PROVIDERS = {"local": _local, "ssh": _ssh, "aws": _aws}


def spec(wanted: CellOptions) -> ClusterSpec:
    """Return what offers are looked for."""
    return ClusterSpec(
        "offers",
        nodes=wanted.nodes or 1,
        accelerator=accelerators.parse(wanted.gpu) if wanted.gpu else None,
        cpus=wanted.cpus,
        memory=wanted.memory,
    )


def _listed(hosts: Sequence[str]) -> str:
    shown = ", ".join(hosts[:4])
    return f"{shown} and {len(hosts) - 4} more" if len(hosts) > 4 else shown


def table(found: dict[str, Any]) -> str:
    """Return what `listing` found, as lines."""
    lines = [f"{each['description']}: `%%sky {each['line']}`" for each in found["offers"]]
    return "\n".join([*lines, *found["notes"]])
