"""Hosts as the user types them: ``gpu1``, ``ada@gpu1``, ``gpu1:4`` (ranks), ``gpu1:2222``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from jupyter_sky.errors import UsageError

_MOST_RANKS = 512
_SSH = 22
_HOST = re.compile(
    # The last @ counts, as with ssh: users of a directory service are called ada@lab.org.
    r"(?:(?P<user>[^\s:]+)@)?(?:\[(?P<v6>[\da-fA-F:.%\w-]+)\]|(?P<name>[\w.-]+))"
    r"(?::(?P<first>\d{1,9}))?(?::(?P<second>\d{1,9}))?"
)


@dataclass(frozen=True)
class Target:
    """A host to reach over SSH.

    Attributes
    ----------
    name
        A name of ``~/.ssh/config``, of the network, or an address.
    user, port
        As typed; ``None`` leaves them to the configuration.
    ranks
        The number of ranks; ``None`` for one per GPU.
    """

    name: str
    user: str | None = None
    port: int | None = None
    ranks: int | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        user = f"{self.user}@" if self.user else ""
        return f"{user}{name}:{self.port}" if self.port else f"{user}{name}"


def parse(texts: str | Iterable[str]) -> tuple[Target, ...]:
    """Read a list of hosts.

    Parameters
    ----------
    texts
        Hosts, each ``[USER@]HOST[:PORT][:RANKS]``; in one string, separated by commas. A single
        number is a port if it is 22 or larger than 512.

    Raises
    ------
    UsageError
        If one cannot be parsed, or occurs twice.
    """
    if isinstance(texts, str):
        texts = texts.split(",")
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f'hosts={texts!r} has no names: write them as in hosts="gpu1,gpu2:4".')
    targets = tuple(_of_the_user(text.strip()) for text in texts if text.strip())
    seen: set[str] = set()
    for target in targets:
        if str(target) in seen:
            raise UsageError(
                f"{target} is named twice: leave one out, or type `{target}:2` for two ranks on it."
            )
        seen.add(str(target))
    return targets


def parse_one(text: str) -> Target:
    """Read a host without a number of ranks, as of a `Target` or of ``ProxyJump``.

    Parameters
    ----------
    text
        ``[USER@]HOST[:PORT]``: any number is a port here.

    Raises
    ------
    UsageError
        If it cannot be parsed.
    """
    match = _match(text)
    if match["second"]:
        raise UsageError(f'"{text}": type a port at most, there are no ranks on it.')
    return _target(text, match, _number(match, "first"), None)


def _of_the_user(text: str) -> Target:
    match = _match(text)
    first, second = _number(match, "first"), _number(match, "second")
    if second is not None:
        return _target(text, match, first, second)
    if first is not None and first != _SSH and first <= _MOST_RANKS:
        return _target(text, match, None, first)
    return _target(text, match, first, None)


def _match(text: str) -> re.Match[str]:
    match = _HOST.fullmatch(text)
    if match is None:
        shown = " ".join(text.split())
        user, at, address = shown.rpartition("@")
        if _is_ipv6(address):
            raise UsageError(
                f"{shown} could end in a port or in ranks: type `{user}{at}[{address}]`."
            )
        raise UsageError(
            f'"{shown}" is not a host: type one like `gpu1`, `ada@gpu1`, `gpu1:4` for four ranks '
            "or `gpu1:2222` for another port."
        )
    return match


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _number(match: re.Match[str], name: str) -> int | None:
    return int(match[name]) if match[name] else None


def _target(text: str, match: re.Match[str], port: int | None, ranks: int | None) -> Target:
    if ranks == 0 or (port is not None and not 0 < port < 65536):
        raise UsageError(f'"{text}": type a port below 65536, and at least one rank.')
    return Target(match["v6"] or match["name"], match["user"], port, ranks)
