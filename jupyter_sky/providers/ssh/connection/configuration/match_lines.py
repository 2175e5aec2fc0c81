"""Lines with ``Match`` in ``~/.ssh/config``, as paramiko reads them.

It takes criteria that it does not know for met, also those in capitals, and refuses the ``Match
final all`` in the configuration that comes with Fedora and Red Hat's systems.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
from collections.abc import Callable
from fnmatch import fnmatchcase

_MATCH = re.compile(r"match[\s=]+", re.IGNORECASE)
_NOBODY = "Host !*"
_ALONE = ("all", "canonical", "final")


def decided(line: str, tag: str) -> str:
    """Return a line; one with ``Match`` without the criteria that paramiko does not know.

    Parameters
    ----------
    line
        The line, without a comment.
    tag
        What ``Tag`` says of the host.
    """
    begin = _MATCH.match(line.strip())
    words = shlex.split(line.strip()[begin.end() :]) if begin else []
    if not words:
        return line
    kept = []
    while words:
        name, _, value = words.pop(0).partition("=")
        name = name.lower()
        criterion = name.removeprefix("!")
        if criterion in _ALONE:
            kept.append(name)
            continue
        if not value and words:
            value = words.pop(0)
        if criterion not in _UNKNOWN:
            kept += [name, value]
        elif _UNKNOWN[criterion](value, tag) == name.startswith("!"):
            return _NOBODY
    if "final" in kept:
        kept = [each for each in kept if each != "all"]
    return f"Match {shlex.join(kept)}" if kept else "Host *"


def _fits(text: str, patterns: str) -> bool:
    """Return whether a pattern fits, and none that begins with an exclamation mark."""
    fitting = [each for each in patterns.split(",") if fnmatchcase(text, each.lstrip("!"))]
    return bool(fitting) and not any(each.startswith("!") for each in fitting)


def _is_here(networks: str) -> bool:
    """Return whether this computer has an address in one of these networks."""
    import psutil

    for network in networks.split(","):
        for each in (address for own in psutil.net_if_addrs().values() for address in own):
            with contextlib.suppress(ValueError):  # an address of the hardware
                address = ipaddress.ip_address(each.address.partition("%")[0])
                if address in ipaddress.ip_network(network, strict=False):
                    return True
    return False


_UNKNOWN: dict[str, Callable[[str, str], bool]] = {
    "tagged": lambda value, tag: _fits(tag, value),
    "localnetwork": lambda value, tag: _is_here(value),
    "sessiontype": lambda value, tag: _fits("exec", value),
    # Ours are those of no command and no ssh that somebody has typed.
    "command": lambda value, tag: False,
    "version": lambda value, tag: False,
}
"""Criteria of OpenSSH that paramiko does not know: whether one is met by a host with a tag."""
