"""What a provider gives: machines with an agent each, and the nodes that they stand for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from jupyter_sky.providers.mtls import Credentials
from jupyter_sky.providers.progress import Preparation
from jupyter_sky.providers.spec import ClusterSpec

Progress = Callable[[str | Preparation], None]
"""Told what is going on, in a few words or node by node."""


class AgentGone(OSError):
    """An agent has ended: there is nothing to connect to any more."""


class MachineGone(AgentGone):
    """An agent has ended with its machine; the text says why, as in ``"it was terminated"``."""


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
        How many GPUs it has, and whether ranks have to share one.
    name
        What the person calls it; ``None`` for a process on this machine.
    price
        Dollars that it costs an hour; ``None`` if nothing, or if nobody knows.
    port
        Where its agent listens to other agents; 0 where there are none.
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

    @property
    def host(self) -> str:
        """What a person calls it."""
        return self.name or (f"node {self.node}" if self.addr.startswith("127.") else self.addr)

    def message(self) -> dict[str, Any]:
        """Return the node as plain data."""
        return asdict(self)

    def peer(self) -> dict[str, Any]:
        """Return where other agents find its agent, as plain data."""
        return {"node": self.node, "addr": self.addr, "port": self.port}

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Node:
        """Return the node that `message` described."""
        return cls(**{**message, "ranks": tuple(message["ranks"])})


class Machine(Protocol):
    """A machine with an agent of ours.

    Over SSH and on AWS a machine is a node. On this computer one machine stands for all nodes,
    unless the person asks for more.
    """

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes that the machine stands for."""

    @property
    def shares_files(self) -> bool:
        """Whether its ranks see the files of the notebook, at the same places.

        They import the person's own modules from there then. Otherwise these are sent.
        """

    async def open(self) -> socket.socket:
        """Return a new connection to the agent.

        Raises
        ------
        AgentGone
            When there is no agent any more.
        OSError
            When it cannot be reached now.
        """

    async def remove(self) -> None:
        """End what is left of the agent and its files."""

    def row(self) -> dict[str, Any]:
        """Return what the registry keeps to find the machine again."""

    def with_nodes(self, nodes: Sequence[Node]) -> Machine:
        """Return the same machine, standing for other nodes."""


@dataclass(frozen=True)
class Standing:
    """A cluster that is up, as a provider has to know it to add nodes to it.

    Attributes
    ----------
    spec
        What the cluster is to be: ``spec.nodes`` counts the nodes that are to come.
    identity
        The cluster's id.
    preload
        Modules that each node imports once.
    machines
        Those that are there and stay.
    lost
        Nodes whose place others are to take, with the same number and ranks.
    authority
        Certificates of those who have signed for agents so far, as PEM; empty for a single agent,
        which has none.
    """

    spec: ClusterSpec
    identity: str
    preload: Sequence[str]
    machines: Sequence[Machine]
    lost: Sequence[Node] = ()
    authority: str = ""

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are there."""
        return [node for machine in self.machines for node in machine.nodes]

    @property
    def numbers(self) -> list[int]:
        """The numbers of the nodes that are to come."""
        there = {node.node for node in self.nodes}
        return [number for number in range(self.spec.nodes) if number not in there]


@dataclass(frozen=True)
class Growth:
    """What a provider has added to a cluster.

    Attributes
    ----------
    machines
        The machines that have come, each with an agent that listens.
    enlarged
        In place of those that are there: the same, in the same order, some for more nodes.
    ranks
        What agents that were there have to start: ``rank`` and ``env`` of each rank.
    authority
        The certificate of who has signed for the agents that have come, as PEM.
    credentials
        For an agent that was the only one so far: what it shows to its peers from now on.
    """

    machines: Sequence[Machine]
    enlarged: Sequence[Machine]
    ranks: Sequence[dict[str, Any]] = ()
    authority: str = ""
    credentials: Credentials | None = None


class Provider(Protocol):
    """Where nodes come from."""

    name: str

    @property
    def usual_nodes(self) -> int:
        """How many nodes a cluster has if nobody says."""

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Raise ``UsageError`` for what this provider cannot do, before anything starts.

        Returns
        -------
        tuple of str
            What the person should know of what it will do otherwise, a sentence each.
        """

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Start the machines of a cluster, all or none of them, also when it is cancelled."""

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that ``row`` describes."""


@runtime_checkable
class Scalable(Provider, Protocol):
    """What a provider has beyond others if nodes can join a cluster that is up, and leave it."""

    async def grow(self, standing: Standing, progress: Progress) -> Growth:
        """Start the nodes that a cluster lacks, all or none of them, also when it is cancelled.

        What the cluster has is left as it is: agents that are there are told by who asks.
        """

    async def give_back(self, machines: Sequence[Machine]) -> None:
        """Let go of machines that are no part of their cluster, and whose agents have ended.

        Raises
        ------
        SkyError
            When one may still cost something; the registry keeps it then.
        """


@dataclass(frozen=True)
class Holding:
    """What a cluster holds at a landlord.

    Attributes
    ----------
    id, name, place
        The cluster, and where it is.
    what
        What it is, in words.
    is_ours
        Whether it was started from this registry; others may use the same account.
    by
        Who started it.
    """

    id: str
    name: str
    place: str
    what: str
    is_ours: bool
    by: str


@runtime_checkable
class CloudProvider(Provider, Protocol):
    """What a provider has beyond others if its machines are rented, and cost until given back."""

    def place(self) -> str:
        """Return where it rents, so that the registry knows where to look."""

    async def release(self, identity: str, place: str | None, progress: Progress) -> None:
        """Give back all that a cluster has there, whether or not anything is.

        Raises
        ------
        SkyError
            When something may still be there; the cluster stays in the registry then.
        """

    async def holdings(self) -> tuple[list[Holding], list[str]]:
        """Return what is there, wherever anything may be; empty if nothing was ever rented.

        The second part says what could not be looked at, and why, a sentence each.
        """

    async def upkeep(self) -> list[str]:
        """Clear up what serves several clusters, and say what of it costs, a sentence each."""
