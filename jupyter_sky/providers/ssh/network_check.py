"""Do hosts reach each other? Each opens a door and the others try it; no cluster is needed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jupyter_sky
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.connection.connection import HostError, Line, lines
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup.probe import probe

_PROGRAM = Path(jupyter_sky.__file__).parent / "node" / "network" / "port_check.py"

Look = tuple[str, str, str]
"""The name of a look, what was found, and what to do about it."""


@dataclass(frozen=True)
class _Door:
    """A door of a host: where it is, and on which interface."""

    address: str
    interface: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


def examine(targets: Sequence[Target], python: str | None, interface: str | None) -> Iterator[Look]:
    """Have hosts try each other, and say of each who reaches it.

    Parameters
    ----------
    targets
        At least two hosts.
    python
        An interpreter that is there; by default ``python3``.
    interface
        The interface that nodes would use; by default the one that leads to the others.
    """
    program = _PROGRAM.read_bytes()

    def connect(target: Target) -> str | HostError:
        try:
            return probe(lines.get(target)).address
        except SkyError as error:
            return HostError(str(error))

    with ThreadPoolExecutor(len(targets)) as threads:
        found = dict(zip(targets, threads.map(connect, targets), strict=True))
        reached = {target: place for target, place in found.items() if isinstance(place, str)}
        # Each stands where its way to the head begins, and the head where its way to the next does.
        first, second, *_ = [*reached.values(), "", ""]

        def open_door(target: Target) -> _Door | HostError:
            peer = second if reached[target] == first else first
            words = ["listen", peer, str(len(reached) - 1), interface or ""]
            try:
                return _Door(**_run(lines.get(target), python, program, words))
            except HostError as error:
                return error

        doors = {}
        if len(reached) > 1:
            for target, opened in zip(reached, threads.map(open_door, reached), strict=True):
                if isinstance(opened, HostError):
                    yield str(target), "cannot be tried", f"{opened}."
                else:
                    doors[target] = opened

        def try_others(target: Target) -> dict[str, str]:
            words = [f"{other}={place}" for other, place in doors.items() if other is not target]
            return _run(lines.get(target), python, program, ["connect", *words])

        tried = dict(zip(doors, threads.map(try_others, doors), strict=True))
    for target in doors:
        yield _look(target, doors, tried)
    for target in targets:
        lines.get(target).close_if_unused()
        if target not in reached:
            yield str(target), "cannot be tried", "see what is wrong with it above."


def _run(line: Line, python: str | None, program: bytes, words: Sequence[str]) -> dict:
    interpreter = shlex.quote(python) if python else "python3"
    found: dict = json.loads(line.run(f"{interpreter} - {shlex.join(words)}", program))
    return found


def _look(
    target: Target, doors: Mapping[Target, _Door], tried: Mapping[Target, Mapping[str, str]]
) -> Look:
    here = doors[target]
    found = f"{here.address} on {here.interface}"
    reasons: dict[str, list[Target]] = {}
    for other, failed in tried.items():
        if why := failed.get(str(target)):
            reasons.setdefault(why, []).append(other)
    if not reasons:
        return str(target), f"{found}, all others reach it", ""
    said = [f"not reached by {', '.join(map(str, each))} ({why})" for why, each in reasons.items()]
    [(why, others), *_] = reasons.items()
    fix = _fix(here, why, [doors[other] for other in others])
    return str(target), f"{found}, {'; '.join(said)}", fix


def _fix(here: _Door, why: str, others: Sequence[_Door]) -> str:
    if "MTU" in why:
        return f"give all of them one MTU, as in `ip link set dev {here.interface} mtu 1400`."
    if "unreachable" in why or "no route" in why:
        return "name addresses in one network, or choose it with `%config Sky.interface`."
    passing = "; ".join(f"ufw allow proto tcp from {each.address}" for each in others[:4])
    return (
        "let its firewall pass TCP from there at all ports, as in "
        f"`{passing}` as root on it, or in the cloud's security group."
    )
