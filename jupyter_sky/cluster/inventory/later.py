"""Updates of a cluster's row: how its start gets on, and what it gets after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from jupyter_sky.cluster.inventory.ledger import Rent
from jupyter_sky.cluster.inventory.registry import record_in_spec


def record_progress(identity: str, text: str) -> None:
    """Record how the start of a cluster gets on, in words."""
    record_in_spec(identity, "progress", text)


def record_rent(identity: str, rent: Rent, since: float) -> None:
    """Record what is rented for a cluster whose machines are no nodes yet, and since when."""
    record_in_spec(identity, "meter", [0.0, since])
    record_in_spec(identity, "rent", asdict(rent))


def record_packages(identity: str, added: Sequence[str]) -> None:
    """Record what was installed on a cluster since it began, without passwords."""
    record_in_spec(identity, "added", list(added))


def record_plugins(identity: str, plugins: Sequence[str]) -> None:
    """Record the plugins of a cluster that has got more of them."""
    record_in_spec(identity, "plugins", list(plugins))
