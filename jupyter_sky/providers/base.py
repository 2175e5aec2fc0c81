"""What a provider of nodes implements, and the data that it exchanges with a cluster.

A provider is a package beside this file, like `jupyter_sky.providers.local`. To write one:

1. ``provider.py`` has a frozen dataclass that implements `Provider`: its fields are the settings of
   the user. Each method says in its docstring what an author has to take care of. Implement
   `Scalable` as well if nodes can join and leave a cluster that is up, and
   `jupyter_sky.providers.cloud.CloudProvider` if machines cost money until they are freed.
2. ``machine.py`` has a frozen dataclass that implements `Machine`: how the agent of a machine is
   reached. A machine that is reached over SSH can use `jupyter_sky.providers.ssh.machine`.
3. To start an agent, write an `AgentSpec` (`jupyter_sky.transport.protocol.agent_spec`) into
   ``spec.json`` of a new folder on the machine and run ``python -P -m jupyter_sky.node FOLDER``
   there. When it listens it prints an `AgentReady` and goes into the background.
4. `jupyter_sky.providers.providers` lists the provider by its name.

The methods of a provider stand in the same order here and in each ``provider.py``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jupyter_sky.providers.mtls import Credentials
from jupyter_sky.providers.progress import Preparation
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.agent_spec import RankSpec
from jupyter_sky.transport.protocol.topology import AgentAddress, NodePlace

Progress = Callable[[str | Preparation], None]
"""Called with what is going on: a few words, or the steps of all nodes."""


class Provider(Protocol):
    """Where nodes come from.

    Attributes
    ----------
    name
        What the user types behind ``--provider``; it is written into the registry.
    counts_hours
        Whether the time of its nodes is shown where others show a price: they have none, but others
        wait for them. It may be left out (`counts_hours`).
    """

    name: str

    @property
    def default_nodes(self) -> int:
        """Number of nodes of a cluster for which the user names none."""

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what this provider cannot do, before anything is started.

        It runs in the user's thread and may ask a service, but changes nothing there.

        Parameters
        ----------
        spec
            The cluster that is about to be started.
        preload
            Modules that each node will import.

        Returns
        -------
        tuple of str
            Warnings for the user: what will be done differently, a sentence each.

        Raises
        ------
        UsageError
            When the cluster cannot be started; the sentence says what to type instead.
        """

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Start the machines of a cluster and an agent on each.

        It starts all of them or none: before it raises, also when it is cancelled, it removes what
        it has started. The registry knows of the cluster already, so that what a killed kernel has
        left is found.

        Parameters
        ----------
        identity
            The cluster's id, eight hexadecimal digits. Name folders and resources after it.
        progress
            To be called before each step.

        Returns
        -------
        list of Machine
            Machines with a listening agent, in the order of their nodes: the head comes first.

        Raises
        ------
        SkyError
            When a machine cannot be started; the sentence names it.
        """

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that `Machine.row` described, in this or another kernel."""


def counts_hours(provider: Provider) -> bool:
    """Return whether the time that clusters have a provider's nodes is counted."""
    return getattr(provider, "counts_hours", False)


@runtime_checkable
class Scalable(Provider, Protocol):
    """A provider whose nodes can join a cluster that is up, and leave it."""

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Start the nodes that a cluster lacks: all or none, as `launch` does.

        The agents that are there are left as they are: the caller tells them of the new ones.
        """

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Give back machines that have left their cluster, and whose agents have ended.

        Providers whose machines belong to the user have nothing to do here.

        Raises
        ------
        SkyError
            When one may still cost something; the registry keeps it then.
        """


class Machine(Protocol):
    """A machine with an agent.

    Over SSH and on AWS a machine is a node. On this computer one machine stands for all nodes,
    unless the user asks for more.
    """

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes that the machine stands for."""

    @property
    def shares_files(self) -> bool:
        """Whether its ranks see the files of the notebook, at the same paths.

        They import the user's own modules from there then; otherwise the modules are sent.
        """

    @property
    def blobs_here(self) -> Path | None:
        """The folder of the node's blobs, if this process may write into it; else ``None``."""

    async def open(self) -> socket.socket:
        """Return a new connection to the agent.

        Raises
        ------
        AgentGone
            When the agent is gone.
        OSError
            When it cannot be reached now.
        """

    async def connect(self, addr: str, port: int) -> socket.socket:
        """Return a new connection to an address that the machine reaches.

        Raises
        ------
        OSError
            When it cannot be reached, or nothing listens there.
        """

    async def remove(self) -> None:
        """Kill the agent if it is left, and remove its files."""

    def row(self) -> dict[str, Any]:
        """Return what the registry keeps to find the machine again, as JSON can hold it."""

    def with_nodes(self, nodes: Sequence[Node]) -> Machine:
        """Return the same machine, standing for other nodes."""


class AgentGone(OSError):
    """An agent has ended: there is nothing to connect to any more."""


class MachineGone(AgentGone):
    """An agent has ended with its machine; the text says why, as in ``"it was terminated"``."""


class NotLetIn(OSError):
    """There is no way in until the user does something; the text says why, and what to do."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes
    ----------
    node
        Its number.
    addr, interface
        Where the other nodes reach it, and the name of the network interface.
    ranks
        The ranks that it runs.
    accelerators
        Number of its GPUs.
    shared_accelerators
        Whether ranks have to share a GPU.
    gpu
        The name of its GPUs.
    name
        What the user calls it; ``None`` for a process on this computer.
    price
        Dollars an hour; ``None`` if it costs nothing, or the price is not known.
    port
        Where its agent listens to other agents; 0 where there are none.
    fingerprint
        Of the certificate that its agent shows to them; empty where there are none.
    """

    node: int
    addr: str
    interface: str
    ranks: tuple[int, ...]
    accelerators: int = 0
    shared_accelerators: bool = False
    gpu: str | None = None
    name: str | None = None
    price: float | None = None
    port: int = 0
    fingerprint: str = ""

    @property
    def host(self) -> str:
        """What the user calls it."""
        return self.name or (f"node {self.node}" if self.addr.startswith("127.") else self.addr)

    def message(self) -> NodePlace:
        """Return the node as messages and the registry hold it."""
        return {
            "node": self.node,
            "addr": self.addr,
            "interface": self.interface,
            "ranks": list(self.ranks),
            "accelerators": self.accelerators,
            "shared_accelerators": self.shared_accelerators,
            "gpu": self.gpu,
            "name": self.name,
            "price": self.price,
            "port": self.port,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Node:
        """Return the node that `message` described."""
        return cls(**{**message, "ranks": tuple(message["ranks"])})

    def peer(self) -> AgentAddress:
        """Return where other agents find its agent, as messages hold it."""
        return {
            "node": self.node,
            "addr": self.addr,
            "port": self.port,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that is up and that a provider is to add nodes to.

    Attributes
    ----------
    spec
        What the cluster shall be: ``spec.nodes`` counts the new nodes as well.
    identity
        The cluster's id.
    preload
        Modules that each node imports.
    machines
        The machines that stay.
    lost
        Nodes that others replace, with the same number and ranks.
    authority
        Certificates of the authorities that have signed for its agents so far, as PEM; empty for a
        single agent, which has none.
    """

    spec: ClusterSpec
    identity: str
    preload: Sequence[str]
    machines: Sequence[Machine]
    lost: Sequence[Node] = ()
    authority: str = ""

    @property
    def nodes(self) -> list[Node]:
        """The nodes that stay."""
        return [node for machine in self.machines for node in machine.nodes]

    @property
    def fingerprints(self) -> list[str]:
        """Those of the agents that stay; none of a single agent, which shows no certificate."""
        return [node.fingerprint for node in self.nodes if node.fingerprint]

    @property
    def new_numbers(self) -> list[int]:
        """The numbers of the nodes to add."""
        there = {node.node for node in self.nodes}
        return [number for number in range(self.spec.nodes) if number not in there]


@dataclass(frozen=True)
class AddedNodes:
    """What a provider has added to a cluster.

    Attributes
    ----------
    machines
        The new machines, each with an agent that listens.
    existing
        The machines of `RunningCluster`, in the same order, some of them with more nodes.
    ranks
        The ranks that agents of existing machines have to start.
    authority
        The certificate of the authority that has signed for the new agents, as PEM.
    credentials
        For an agent that was the only one so far: what it shows to its peers from now on.
    """

    machines: Sequence[Machine]
    existing: Sequence[Machine]
    ranks: Sequence[RankSpec] = ()
    authority: str = ""
    credentials: Credentials | None = None
