"""What is paid besides instances: the disks that they run from, and their public addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.formatting import format_count, format_dollars, format_list
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.market import storage

PUBLIC_ADDRESS = 0.005
"""Dollars an hour of a public address, in every region: https://aws.amazon.com/vpc/pricing/"""

_DEAREST = 0.16
"""Dollars a month that limits count for a gigabyte of disk where AWS does not tell its price.

No region takes more.
"""


@dataclass(frozen=True)
class Besides:
    """Dollars an hour of what each node needs besides its instance.

    Attributes
    ----------
    gigabyte, address
        Of a gigabyte of disk, and of its public address if it has one.
    is_known
        Whether AWS has told the price of disks.
    """

    gigabyte: float
    address: float = 0.0
    is_known: bool = True

    def price(self, gigabytes: int) -> float:
        """Return the dollars an hour of a node with disks of so many gigabytes together."""
        return gigabytes * self.gigabyte + self.address

    def described(self, nodes: int, disks: Sequence[int]) -> str:
        """Return in words what is in a price besides instances, and what is not.

        Parameters
        ----------
        disks
            Gigabytes of the disks of each node.
        """
        cost = format_dollars(nodes * sum(disks) * self.gigabyte)
        price = f"for {cost} an hour" if self.is_known else f"at an unknown price, {cost} at most"
        parts = [f"{of_disks(nodes, disks)} {price}"]
        if self.address:
            addresses = format_count(nodes, "public IP")
            parts.append(f"{addresses} for {format_dollars(nodes * self.address)} an hour")
        return f"{format_list(parts)}; not traffic out of AWS, which no limit counts"


def besides(clients: Clients, is_public: bool) -> Besides:
    """Return what is paid besides instances in a region.

    Parameters
    ----------
    is_public
        Whether each has a public address.
    """
    known = storage.usual_price(clients)
    price = _DEAREST / storage.HOURS_A_MONTH if known is None else known
    return Besides(price, PUBLIC_ADDRESS if is_public else 0.0, known is not None)


def of_disks(nodes: int, disks: Sequence[int]) -> str:
    """Return in words how many disks nodes have, and of how many gigabytes those of each are."""
    sizes = format_list([f"{each}" for each in disks])
    return f"{format_count(nodes * len(disks), 'disk')} of {sizes} GB"
