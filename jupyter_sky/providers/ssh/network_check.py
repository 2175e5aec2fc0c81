"""Checks whether hosts can reach each other, for ``%sky doctor``, without a cluster.

Each host opens a port, and the others connect to it, with `jupyter_sky.node.network.port_check`,
which is sent to an interpreter there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupyter_sky
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.host_shell import read_answer
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup.facts import gather_facts

_PROGRAM = Path(jupyter_sky.__file__).parent / "node" / "network" / "port_check.py"


@dataclass(frozen=True)
class _OpenPort:
    """A port that a host has opened: its address and interface."""

    address: str
    interface: str
    port: int

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def diagnose(
    targets: Sequence[Target], python: str | None, interface: str | None
) -> Iterator[CheckResult]:
    """Let hosts connect to each other; yield for each which others can reach it.

    Parameters
    ----------
    targets
        At least two hosts.
    python
        An existing interpreter; by default, ``python3``.
    interface
        The interface that nodes would use; by default, the one that leads to the others.
    """
    with ThreadPoolExecutor(len(targets)) as threads:
        found = dict(zip(targets, threads.map(_address, targets), strict=True))
        reached = {target: address for target, address in found.items() if address is not None}
        # A host listens on the local address of its route to the first; the first on that of its
        # route to the second.
        first, second, *_ = [*reached.values(), "", ""]

        def open_port(target: Target) -> _OpenPort | HostError:
            peer = second if reached[target] == first else first
            words = ["listen", peer, str(len(reached) - 1), interface or ""]
            try:
                return _OpenPort(**_run(target, python, words))
            except HostError as error:
                return error

        ports: dict[Target, _OpenPort] = {}
        if len(reached) > 1:
            for target, opened in zip(reached, threads.map(open_port, reached), strict=True):
                if isinstance(opened, HostError):
                    yield CheckResult(str(target), "cannot be tested", f"{opened}.")
                else:
                    ports[target] = opened

        def try_others(target: Target) -> dict[str, str]:
            words = [f"{other}={port}" for other, port in ports.items() if other is not target]
            return _run(target, python, ["connect", *words])

        tried = dict(zip(ports, threads.map(try_others, ports), strict=True))
    for target in ports:
        yield _result(target, ports, tried)
    for target in targets:
        pool.get(target).close_if_unused()
        if target not in reached:
            trouble = "see what is wrong with it above."
            yield CheckResult(str(target), "cannot be tested", trouble)


def _address(target: Target) -> str | None:
    """Return the address of a host; ``None`` if it cannot be used."""
    try:
        return gather_facts(pool.get(target)).address
    except SkyError:
        return None


def _run(target: Target, python: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Run the program on a host and return its output."""
    interpreter = shlex.quote(python) if python else "python3"
    command = f"{interpreter} - {shlex.join(words)}"
    said = pool.get(target).run(command, _PROGRAM.read_bytes())
    found: dict[str, Any] = read_answer(said)
    return found


def _result(
    target: Target,
    ports: Mapping[Target, _OpenPort],
    tried: Mapping[Target, Mapping[str, str]],
) -> CheckResult:
    """Return which of the others can reach a host.

    Parameters
    ----------
    tried
        For each host, the errors of its connections by the name of the other host.
    """
    here = ports[target]
    found = f"{here.address} on {here.interface}"
    reasons: dict[str, list[Target]] = {}
    for other, failed in tried.items():
        if why := failed.get(str(target)):
            reasons.setdefault(why, []).append(other)
    if not reasons:
        return CheckResult(str(target), f"{found}, all others reach it")
    said = [f"not reached by {', '.join(map(str, each))} ({why})" for why, each in reasons.items()]
    [(why, others), *_] = reasons.items()
    fix = _fix(here, why, [ports[other] for other in others])
    return CheckResult(str(target), f"{found}, {'; '.join(said)}", fix)


def _fix(here: _OpenPort, why: str, others: Sequence[_OpenPort]) -> str:
    if "MTU" in why:
        return f"give all of them one MTU, as in `ip link set dev {here.interface} mtu 1400`."
    if "unreachable" in why or "no route" in why:
        return "name addresses in one network, or choose it with `%config Sky.interface`."
    passing = "; ".join(f"ufw allow proto tcp from {each.address}" for each in others[:4])
    return (
        "let its firewall pass TCP from there at all ports, as in "
        f"`{passing}` as root on it, or in the cloud's security group."
    )
