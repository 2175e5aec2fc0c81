"""Whether this computer may log in to the instances of a cluster, when its address has changed."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Mapping
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws import rented
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.network import address, security_group

_AGAIN_AFTER = 20.0
"""Seconds after which what was found out about a cluster is looked at anew."""

_locks: dict[str, threading.Lock] = {}
_known: dict[str, tuple[float, str | None]] = {}


def let_in(clients: Clients, identity: str, host: str) -> str | None:
    """See to it that this computer may log in; say what keeps it from that, if something does.

    It is cheap to call again and again.

    Parameters
    ----------
    identity
        The cluster.
    host
        The address at which an instance of it is reached.
    """
    # No other cluster waits for its region.
    with _locks.setdefault(identity, threading.Lock()):
        asked, found = _known.get(identity, (0.0, None))
        if asked and time.monotonic() - asked < _AGAIN_AFTER:
            return found
        try:
            found = _let_in(clients, identity, host)
        except SkyError as error:
            return f"whether this computer may log in cannot be seen: {str(error).rstrip('.')}"
        _known[identity] = time.monotonic(), found
        return found


def here(host: str) -> str:
    """Return the address of this computer, as it is seen from that of an instance."""
    if ipaddress.ip_address(host).is_private:
        return address.towards(host)
    return address.seen_from_outside()


def is_elsewhere(group: Mapping[str, Any]) -> str | None:
    """Return this computer's address if a security group does not let it in; else ``None``."""
    rules = security_group.who_may_log_in(group)
    if not rules:
        return None
    now = here(str(ipaddress.ip_network(next(iter(rules)))[0]))
    return None if security_group.is_let_in(group, now) else now


def _let_in(clients: Clients, identity: str, host: str) -> str | None:
    rented.check_account(identity, clients)
    now = here(host)
    for group in security_group.find_groups(clients, identity):
        if security_group.is_let_in(group, now):
            continue
        rules = security_group.who_may_log_in(group)
        if not any(rules.values()):
            return (
                f"this computer is at {now} now, and `ssh_from` lets in {', '.join(rules)}: "
                "go back there, or let it in at the security group "
                f"{group['GroupId']} in the AWS console"
            )
        try:
            security_group.admit(clients, group, f"{now}/32")
        except SkyError as error:
            return (
                f"this computer is at {now} now, and the security group {group['GroupId']} "
                f"lets in {', '.join(rules)}: {str(error).rstrip('.')}"
            )
    return None
