"""Finds the address and the network interface of a node that lead to another node."""

from __future__ import annotations

import socket

import psutil

_LOOPBACK = ("127.0.0.1", "lo")


def local_address(peer: str | None, interface: str | None = None) -> tuple[str, str]:
    """Return the address at which other nodes reach this one, and its interface.

    Parameters
    ----------
    peer
        An address of another node; ``None`` if there is none.
    interface
        The interface that the user has chosen, if any.

    Raises
    ------
    ValueError
        If there is no such interface, or no route to the peer.
    """
    interfaces = psutil.net_if_addrs()
    if interface is not None:
        for family in (socket.AF_INET, socket.AF_INET6):
            for each in interfaces.get(interface, ()):
                # An address with a % is only valid on one link.
                if each.family == family and "%" not in each.address:
                    return each.address, interface
        known = ", ".join(sorted(interfaces))
        raise ValueError(f"there is no interface {interface} with an address, but {known}")
    if peer is None:
        return _LOOPBACK
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            # This sends nothing: the system only chooses the route.
            sock.connect((peer, 9))
        except OSError as error:
            raise ValueError(f"there is no way to {peer} ({error.strerror})") from None
        address = sock.getsockname()[0]
    for name, addresses in interfaces.items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return address, name
    raise ValueError(f"no interface has the address {address}")
