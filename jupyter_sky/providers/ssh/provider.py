"""The SSH provider: nodes are hosts that the user can log in to."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.base import Machine, Progress, StartingAgents
from jupyter_sky.providers.mtls import Credentials
from jupyter_sky.providers.scaling import AddedNodes, RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection import targets as ssh_targets
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.host_threads import HostThreads
from jupyter_sky.providers.ssh.machine import SSHMachine, in_thread, submit
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.agent import (
    AgentFolders,
    agent_folders,
    remove_agent,
    start_agent,
)
from jupyter_sky.providers.ssh.setup.files import SentFiles, check_files
from jupyter_sky.providers.ssh.setup.host_progress import HostProgress
from jupyter_sky.providers.ssh.setup.packages.recipe import recipe_for
from jupyter_sky.providers.ssh.setup.placement import PlacedNode, place_nodes
from jupyter_sky.providers.ssh.setup.prepare import PreparedHost, prepare_host
from jupyter_sky.transport.tasks import blocking, shielded

T = TypeVar("T")

RETURN_WITHIN = 300.0
"""Seconds for a host to answer again whose node was lost."""

_ASK_EVERY = 2.0


@dataclass(frozen=True)
class SSH:
    """Nodes that are machines to log in to.

    Parameters
    ----------
    hosts
        The machines, as a list or separated by commas: names of ``~/.ssh/config`` or addresses, as
        ``[USER@]HOST[:PORT][:RANKS]``.
    python
        An interpreter on the machines that has the packages that ranks need; by default, an
        environment is made for the image.
    interface
        The network interface for traffic between the machines; by default, the one that routes to
        the other machines.
    grace
        Seconds after which nodes end if no notebook is connected and nothing runs.
    spot
        Whether the machines are EC2 spot instances: they get a notice two minutes before they are
        taken away, which the notebook shows.
    """

    hosts: Sequence[str] | str = ()
    python: str | None = None
    interface: str | None = None
    grace: float = 3600.0
    spot: bool = False

    name = "ssh"

    def __post_init__(self) -> None:
        ssh_targets.parse(self.hosts)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The machines."""
        return ssh_targets.parse(self.hosts)

    @property
    def default_nodes(self) -> int:
        """Number of nodes if the user gives none: all hosts."""
        return max(1, len(self.targets))

    def check(self, spec: ClusterSpec, preload: Sequence[str], present: int = 0) -> tuple[str, ...]:
        """Refuse errors that can be detected before asking any host."""
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
        recipe_for(spec.image)
        check_files(spec.image)
        if spec.nodes > known:
            raise UsageError(
                f"{spec.nodes} nodes were asked for, and {format_count(known, 'host')} "
                f"{'is' if known == 1 else 'are'} named: name more with `--hosts`, or ask for "
                "fewer."
            )
        return ()

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Prepare all hosts in parallel, and start an agent on each."""
        new = RunningCluster(spec, identity, preload)
        started = await self._start_nodes(self.targets[: spec.nodes], new, progress)
        return [*started.machines]

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""
        return SSHMachine.from_row(row)

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Prepare further hosts, and start an agent on each."""
        taken = {node.name for node in running.nodes}
        free = [target for target in self.targets if str(target) not in taken]
        # A host that was just lost comes last.
        lost = {node.name for node in running.lost}
        free.sort(key=lambda target: str(target) in lost)
        count = len(running.new_numbers)
        if running.lost:
            free = await _answering(free, count, progress)
        if len(free) < count:
            raise UsageError(
                f"{format_count(count, 'more host')} {'is' if count == 1 else 'are'} needed, and "
                f"{len(free)} named that the cluster does not have: name more with `--hosts`."
            )
        return await self._start_nodes(free[:count], running, progress)

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Do nothing: the machines are the user's own."""

    # Starting nodes

    async def _start_nodes(
        self,
        targets: Sequence[Target],
        cluster: RunningCluster,
        progress: Progress,
    ) -> AddedNodes:
        """Prepare hosts and start an agent on each: on all or none, even if cancelled."""
        names = [str(target) for target in targets]
        credentials, alone = cluster.issue_credentials(names)
        hosts_progress = HostProgress(names, progress)
        threads = HostThreads(targets, hosts_progress)
        folders: list[AgentFolders] = []
        try:
            hosts = await self._prepare_hosts(threads, targets, cluster, hosts_progress)
            known = await in_thread(_address_in, cluster)
            placed = place_nodes(targets, [host.facts for host in hosts], cluster)
            folders += [
                agent_folders(cluster.identity, each.node.node, host.facts)
                for each, host in zip(placed, hosts, strict=True)
            ]
            machines = [
                SSHMachine(host.name, *each, host.python, host.code, (one.node,))
                for host, each, one in zip(hosts, folders, placed, strict=True)
            ]
            await blocking(progress, StartingAgents.on(machines))

            def start(number: int) -> SSHMachine:
                host = hosts[number]
                hosts_progress.report(host.name, "starting", 0.9)
                peer = known or _peer_address(number, placed)
                machine = self._start_node(
                    cluster, host, placed[number], machines[number], peer, credentials[number]
                )
                hosts_progress.report(host.name, "ready", 1.0)
                return machine

            started = await threads.on_each(start)
            return AddedNodes(started, cluster.machines, credentials=alone)
        except BaseException:
            await shielded(_undo(threads, targets, folders))
            raise

    async def _prepare_hosts(
        self,
        threads: HostThreads,
        targets: Sequence[Target],
        cluster: RunningCluster,
        progress: HostProgress,
    ) -> list[PreparedHost]:
        files = await in_thread(SentFiles.for_cluster, cluster)
        relay = Relay(len(targets))

        def prepare(number: int) -> PreparedHost:
            connection = pool.get(targets[number])
            report = partial(progress.report, str(targets[number]))
            return prepare_host(
                connection, cluster.spec, self.python, files, relay, report, progress.announce
            )

        try:
            return await threads.on_each(prepare)
        finally:
            await in_thread(relay.close)

    def _start_node(
        self,
        cluster: RunningCluster,
        host: PreparedHost,
        placed: PlacedNode,
        machine: SSHMachine,
        peer: str | None,
        credentials: Credentials | None,
    ) -> SSHMachine:
        spec = cluster.spec
        runtime = machine.folder.rpartition("/")[0]
        agent = replace(
            cluster.agent_spec(self.grace, credentials),
            socket=f"{machine.folder}/agent.sock",
            blobs=machine.blobs,
            ranks=placed.rank_specs(host.facts.cpus),
            peer=peer,
            interface=self.interface,
            cwd=host.work,
            python_path=host.code,
            env={**spec.image.env, **host.variables},
            keeps=host.keeps,
            umask=host.facts.umask,
            # Machines without a limit lack its file.
            notices=("limit", "metadata") if self.spot else ("limit",),
            templates=runtime,
        )
        if cluster.lost:
            # It may be a host that was cut off, and still has its previous agent.
            remove_agent(host.connection, machine.folder, machine.blobs)
        ready = start_agent(host.connection, machine.folder, agent, host.python, host.code)
        pool.named(host.name).note_own(runtime)
        return machine.with_nodes([placed.node.reached_at(ready)])


async def _undo(
    threads: HostThreads, targets: Sequence[Target], folders: Sequence[AgentFolders]
) -> None:
    """Hang up on hosts that are being prepared, and remove agents that were started."""
    # First, since a thread still working on a host could start an agent there.
    await threads.stop()

    def remove(number: int) -> None:
        connection = pool.get(targets[number])
        remove_agent(connection, *folders[number])
        connection.close_if_unused()

    await asyncio.gather(
        *(in_thread(remove, number) for number in range(len(folders))), return_exceptions=True
    )


async def _answering(targets: Sequence[Target], count: int, progress: Progress) -> list[Target]:
    """Return the first hosts that answer, up to a number, or fewer if that takes too long.

    A lost host may be restarting; it comes after the others, and is not waited for if they suffice.
    """

    def answers(target: Target) -> bool:
        with contextlib.suppress(HostError):
            pool.get(target).run("true")
            return True
        return False

    until = time.monotonic() + RETURN_WITHIN
    while True:
        asked = [submit(answers, target) for target in targets]
        there: list[Target] = []
        for target, said in zip(targets, asked, strict=True):
            if await asyncio.wrap_future(said):
                there.append(target)
            if len(there) == count:
                return there
        if time.monotonic() > until:
            return there
        progress(f"waiting for {', '.join(str(t) for t in targets if t not in there)}")
        await asyncio.sleep(_ASK_EVERY)


def _address_in(cluster: RunningCluster) -> str | None:
    """Return an address in a running cluster; ``None`` for a new one."""
    if not cluster.machines:
        return None
    machine, node = cluster.machines[0], cluster.nodes[0]
    # The agent of a node that was alone so far has not determined its address yet.
    if node.port or not isinstance(machine, SSHMachine):
        return node.addr
    return machine.facts().address


def _peer_address(number: int, placed: Sequence[PlacedNode]) -> str | None:
    """Return the address whose route determines a node's own address.

    That is the address of the head or, for the head, that of the second node.
    """
    if len(placed) == 1:
        return None
    return placed[0 if number else 1].node.addr
