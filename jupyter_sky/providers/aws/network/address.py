"""The address of this computer, as instances see it."""

from __future__ import annotations

import ipaddress
import socket
import urllib.request

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.network.subnets import Subnet

_WHO_AM_I = "https://checkip.amazonaws.com"
_ANSWER_WITHIN = 10.0


def caller_cidr(subnet: Subnet, private: bool, given: str | None) -> str:
    """Return the addresses that may log in, as CIDR: this computer's own, and no other.

    Parameters
    ----------
    private
        Whether instances are reached at their private addresses.
    given
        What the user says.
    """
    if given is not None:
        return str(ipaddress.ip_network(given, strict=False))
    return f"{towards(subnet.cidr) if private else seen_from_outside()}/32"


def towards(cidr: str) -> str:
    """Return the address of this computer on its route to a network; nothing is sent."""
    network = ipaddress.ip_network(cidr)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((str(network[min(1, network.num_addresses - 1)]), 9))
        return str(sock.getsockname()[0])


def seen_from_outside() -> str:
    """Return the address that this computer has on the internet.

    Raises
    ------
    UsageError
        When nobody tells.
    """
    try:
        with urllib.request.urlopen(_WHO_AM_I, timeout=_ANSWER_WITHIN) as answer:
            return str(ipaddress.IPv4Address(answer.read(64).decode().strip()))
    except (OSError, ValueError):
        raise UsageError(
            f"your public IP address is not known, as {_WHO_AM_I} does not answer: set it, as in "
            "`%config Sky.aws = {'ssh_from': '203.0.113.7/32'}`."
        ) from None
