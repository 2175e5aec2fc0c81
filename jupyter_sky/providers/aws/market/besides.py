"""What is paid besides instances: the disks that they run from, and their public addresses."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_sky.formatting import format_count, format_dollars, format_list
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.market import storage

PUBLIC_ADDRESS = 0.005
"""Dollars an hour of a public address, in every region: https://aws.amazon.com/vpc/pricing/"""


def of_disks(nodes: int, disks: Sequence[int]) -> str:
    """Return in words how many disks nodes have, and of how many gigabytes those of each are."""
    sizes = format_list([f"{each}" for each in disks])
    return f"{format_count(nodes * len(disks), 'disk')} of {sizes} GB"


def described(clients: Clients, nodes: int, disks: Sequence[int], is_public: bool) -> str:
    """Return in words what nodes cost besides their instances.

    Parameters
    ----------
    disks
        Gigabytes of the disks of each.
    is_public
        Whether each has a public address.
    """
    price = storage.usual_price(clients, nodes * sum(disks))
    cost = "at an unknown price" if price is None else f"for {format_dollars(price)} an hour"
    parts = [f"{of_disks(nodes, disks)} {cost}"]
    if is_public:
        addresses = format_count(nodes, "public IP")
        parts.append(f"{addresses} for {format_dollars(nodes * PUBLIC_ADDRESS)} an hour")
    parts.append("traffic out of AWS")
    return f"{format_list(parts)}; no limit counts this"
