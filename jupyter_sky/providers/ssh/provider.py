"""The SSH provider: from the hosts that a person names to nodes with agents."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.providers.base import Growth, Machine, Progress, Standing
from jupyter_sky.providers.mtls import Credentials, mint
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection import targets as host_names
from jupyter_sky.providers.ssh.connection.connection import HostError, Line, lines
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.machine import SSHMachine, in_thread
from jupyter_sky.providers.ssh.setup.agent import (
    check_python,
    end_agent,
    folders,
    send_package,
    start_agent,
    work_folder,
)
from jupyter_sky.providers.ssh.setup.environment import Recipe, install_system, make, recipe
from jupyter_sky.providers.ssh.setup.files import archive, check_files, send_files, shell_values
from jupyter_sky.providers.ssh.setup.placement import Place, check_size, plan
from jupyter_sky.providers.ssh.setup.probe import Probe, probe
from jupyter_sky.providers.ssh.setup.progress import Phases

T = TypeVar("T")

RETURN_WITHIN = 300.0
"""Seconds for a host to answer again whose node was lost."""

_ASK_EVERY = 2.0


@dataclass(frozen=True)
class _Host:
    """A host that is ready for an agent."""

    line: Line
    here: Probe
    python: str
    code: str
    values: dict[str, str]


@dataclass(frozen=True)
class SSH:
    """Nodes that are machines to log in to.

    Parameters
    ----------
    hosts
        The machines, as a list or with commas: names of ``~/.ssh/config`` or addresses, each as
        ``[USER@]HOST[:PORT][:RANKS]``.
    python
        An interpreter on the machines that has what ranks need; an environment is made for the
        image where this is not given.
    interface
        The network interface for traffic between the machines; by default the one that leads from
        one to the other.
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    spot
        Whether the machines are spot instances of EC2: they hear two minutes before that they will
        be taken away, and the notebook shows it.
    """

    hosts: Sequence[str] | str = ()
    python: str | None = None
    interface: str | None = None
    grace: float = 3600.0
    spot: bool = False

    name = "ssh"

    def __post_init__(self) -> None:
        host_names.parse(self.hosts)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The machines."""
        return host_names.parse(self.hosts)

    @property
    def usual_nodes(self) -> int:
        """How many nodes a cluster has if nobody says: all."""
        return max(1, len(self.targets))

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what can be known to be wrong before any host is asked."""
        if importlib.util.find_spec("paramiko") is None:
            raise UsageError(
                "machines are reached over SSH with paramiko, which is not installed: "
                "run `%pip install 'jupyter-sky[ssh]'`."
            )
        known = len(self.targets)
        if not known:
            raise UsageError(
                "the provider ssh needs machines: name them, as in `--hosts gpu1,gpu2`."
            )
        version = ".".join(map(str, sys.version_info[:2]))
        asked = spec.image.python
        if asked is not None and asked.split(".")[:2] != version.split("."):
            raise UsageError(
                f"the image has Python {asked} and the notebook {version}, between which functions "
                f'cannot travel: leave python out, or type python="{version}".'
            )
        recipe(spec.image)
        check_files(spec.image)
        if spec.nodes > known:
            raise UsageError(
                f"{spec.nodes} nodes were asked for, and {known} host{'s are' * (known > 1)}"
                f"{' is' * (known == 1)} named: name more with `--hosts`, or ask for fewer."
            )
        return ()

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Prepare the hosts, all at once, and start an agent on each."""
        standing = Standing(spec, identity, preload, ())
        targets = self.targets[: spec.nodes]
        credentials = mint(list(map(str, targets))) if len(targets) > 1 else []
        return await self._bring_up(targets, standing, credentials, progress)

    async def grow(self, standing: Standing, progress: Progress) -> Growth:
        """Prepare further hosts, and start an agent on each."""
        taken = {node.name for node in standing.nodes}
        free = [target for target in self.targets if str(target) not in taken]
        # A host that has just been lost comes last.
        lost = {node.name for node in standing.lost}
        free.sort(key=lambda target: str(target) in lost)
        count = len(standing.numbers)
        if standing.lost:
            free = await self._answering(free, count, progress)
        if len(free) < count:
            raise UsageError(
                f"{count} more host{'s are' if count > 1 else ' is'} needed, and {len(free)} named "
                "that the cluster does not have: name more with `--hosts`."
            )
        targets = free[:count]
        names = [str(target) for target in targets]
        alone, *credentials = mint([standing.nodes[0].host, *names])
        shown = [
            replace(each, authority=each.authority + standing.authority) for each in credentials
        ]
        machines = await self._bring_up(targets, standing, shown, progress)
        return Growth(machines, standing.machines, (), alone.authority, alone)

    async def _answering(
        self, targets: Sequence[Target], count: int, progress: Progress
    ) -> list[Target]:
        """Return so many hosts that answer, the first that do, or fewer when that takes too long.

        A host that was lost may be one that starts again.
        """

        def answers(target: Target) -> bool:
            with contextlib.suppress(HostError):
                lines.get(target).run("true")
                return True
            return False

        until = time.monotonic() + RETURN_WITHIN
        while True:
            said = await asyncio.gather(*(in_thread(answers, target) for target in targets))
            there = [target for target, is_there in zip(targets, said, strict=True) if is_there]
            if len(there) >= count or time.monotonic() > until:
                return there
            progress(f"waiting for {', '.join(str(t) for t in targets if t not in there)}")
            await asyncio.sleep(_ASK_EVERY)

    async def _bring_up(
        self,
        targets: Sequence[Target],
        standing: Standing,
        credentials: Sequence[Credentials],
        progress: Progress,
    ) -> list[Machine]:
        spec = standing.spec
        phases = Phases([str(target) for target in targets], progress)
        places: list[Place] = []
        try:
            image = spec.image
            files = await in_thread(archive, image.includes, image.excludes)
            made_of = recipe(image)
            hosts = await self._each(
                targets,
                phases,
                lambda number: self._prepare(targets[number], spec, made_of, files, phases),
            )
            known = await in_thread(_address, standing)
            places = plan(targets, [host.here for host in hosts], standing)
            return await self._start(standing, hosts, places, known, credentials, phases)
        except BaseException:
            phases.stop()
            await asyncio.shield(self._clean_up(targets, standing.identity, places))
            raise

    async def give_back(self, machines: Sequence[Machine]) -> None:
        """Do nothing: the machines are the person's own."""

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""
        return SSHMachine.of(row)

    def _prepare(
        self, target: Target, spec: ClusterSpec, made_of: Recipe, files: bytes, phases: Phases
    ) -> _Host:
        line, name = lines.get(target), str(target)
        phases.say(name, "connecting", 0.0)
        line.connect()
        phases.say(name, "looking around", 0.1)
        here = probe(line)
        check_size(here, spec)
        phases.say(name, "sending jupyter_sky", 0.2)
        code = send_package(line, here)
        if self.python is not None:
            python = self.python
            phases.say(name, f"checking {python}", 0.4)
            check_python(line, python)
        else:
            install_system(line, here, spec.image.apt, lambda text: phases.say(name, text, 0.3))
            python = make(line, here, made_of, lambda text: phases.say(name, text, 0.4))
        if files:
            phases.say(name, f"sending files ({format_bytes(len(files))})", 0.7)
            send_files(line, work_folder(here, spec.name), files)
        values = shell_values(line, spec.image.shell_vars)
        phases.say(name, "prepared", 0.8)
        return _Host(line, here, python, code, values)

    async def _start(
        self,
        standing: Standing,
        hosts: Sequence[_Host],
        places: Sequence[Place],
        known: str | None,
        credentials: Sequence[Credentials],
        phases: Phases,
    ) -> list[Machine]:
        spec = standing.spec

        def start(number: int) -> SSHMachine:
            host, place = hosts[number], places[number]
            phases.say(str(host.line.target), "starting", 0.9)
            settings = {
                "cluster": spec.name,
                "id": standing.identity,
                "index": place.node.node,
                "peer": known or _peer(number, places),
                "interface": self.interface,
                "credentials": asdict(credentials[number]) if credentials else None,
                "grace": self.grace,
                "spot": self.spot,
                "idle_timeout": spec.idle_timeout,
                "preload": list(standing.preload),
                "env": {**spec.image.env, **host.values},
                "ranks": place.ranks(host.here.cpus),
            }
            if standing.lost:
                # It may be one that was cut off, with its former agent.
                end_agent(host.line, *folders(standing.identity, place.node.node, host.here))
            about = start_agent(host.line, host.here, settings, host.python, host.code)
            where = {key: about[key] for key in ("addr", "interface", "port")}
            node = replace(place.node, **where)
            phases.say(str(host.line.target), "ready", 1.0)
            return SSHMachine(
                host=str(host.line.target),
                folder=about["folder"],
                blobs=about["blobs"],
                python=host.python,
                code=host.code,
                nodes=(node,),
            )

        return await self._each([host.line.target for host in hosts], phases, start)

    async def _each(
        self, targets: Sequence[Target], phases: Phases, function: Callable[[int], T]
    ) -> list[T]:
        """Do something on every host; what is wrong with any of them is said of all at once."""

        def do(number: int) -> T:
            try:
                return function(number)
            except SkyError as error:
                phases.fail(str(targets[number]), str(error))
                raise

        done = await asyncio.gather(
            *(in_thread(do, number) for number in range(len(targets))), return_exceptions=True
        )
        results, failed = [], []
        for name, each in zip(map(str, targets), done, strict=True):
            if isinstance(each, SkyError):
                failed.append(f"{name}: {each}")
            elif isinstance(each, BaseException):
                raise each
            else:
                results.append(each)
        if failed:
            raise SkyError(_failure(failed, len(targets)))
        return results

    async def _clean_up(
        self, targets: Sequence[Target], identity: str, places: Sequence[Place]
    ) -> None:
        """End what is under way, and what was started before it was clear that not all can be."""

        def clean(index: int) -> None:
            line = lines.get(targets[index])
            line.close_if_unused()
            if places:
                number = places[index].node.node
                end_agent(line, *folders(identity, number, probe(line)))
                line.close_if_unused()

        await asyncio.gather(
            *(in_thread(clean, index) for index in range(len(targets))), return_exceptions=True
        )


def _address(standing: Standing) -> str | None:
    """Return an address of the cluster that stands, if one does."""
    if not standing.machines:
        return None
    machine, node = standing.machines[0], standing.nodes[0]
    # A node that was alone so far stands nowhere yet.
    return node.addr if node.port or not isinstance(machine, SSHMachine) else machine.look().address


def _peer(number: int, places: Sequence[Place]) -> str | None:
    """Return the address to which a node's way decides its own: the head's, or the head's next."""
    if len(places) == 1:
        return None
    return places[0 if number else 1].node.addr


def _failure(failed: Sequence[str], count: int) -> str:
    if len(failed) == 1:
        return f"{failed[0].rstrip('.')}."
    lines = "".join(f"\n  {each.rstrip('.')}" for each in failed)
    return f"{len(failed)} of {count} hosts cannot be used:{lines}"
