"""What a provider of nodes implements, and the data that it exchanges with a cluster.

A provider is a package beside this file, like `jupyter_sky.providers.local`. To write one:

1. ``provider.py`` has a frozen dataclass that implements `Provider`: its fields are the user's
   settings. Each method's docstring says what an author has to take care of. Also implement
   `jupyter_sky.providers.scaling.Scalable` if nodes can join and leave a running cluster, and
   `jupyter_sky.providers.cloud.CloudProvider` if machines cost money until they are freed.
2. ``machine.py`` has a frozen dataclass that implements `Machine`: it says how to reach an agent. A
   machine that is reached over SSH can use `jupyter_sky.providers.ssh.machine`.
3. To start an agent, complete `RunningCluster.agent_spec` (`jupyter_sky.providers.scaling`), write
   it into ``spec.json`` of a new folder on the machine and run ``python -P -m jupyter_sky.node
   FOLDER`` there. When it listens it prints an `AgentStarted` and goes into the background.
4. `jupyter_sky.providers.providers` lists the provider by its name.

The methods of a provider are in the same order here and in each ``provider.py``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from jupyter_sky.formatting import format_count
from jupyter_sky.providers.progress import Preparation
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.agent_spec import AgentStarted
from jupyter_sky.transport.protocol.topology import AgentAddress, NodePlace

Progress = Callable[[str | Preparation], None]
"""Called with what is going on: a few words, or the steps of all nodes."""


class Provider(Protocol):
    """Where nodes come from.

    Attributes
    ----------
    name
        What the user types after ``--provider``; it is also stored in the registry.
    counts_hours
        Whether the hours of its nodes are shown in place of a price, since nodes have no price but
        are shared with others. It may be left out (see `counts_hours`).
    interface
        The network interface for traffic between nodes, if the user can choose it; left out by
        others (see `takes_interface`).
    """

    name: str

    @property
    def default_nodes(self) -> int:
        """Number of nodes of a cluster if the user gives none."""

    def check(self, spec: ClusterSpec, preload: Sequence[str], present: int = 0) -> tuple[str, ...]:
        """Refuse what this provider cannot do, before anything is started.

        It runs in the user's thread and may ask a service, but changes nothing there.

        Parameters
        ----------
        spec
            The cluster that is about to be started.
        preload
            Modules that each node will import.
        present
            Number of its nodes that are up already: the others join.

        Returns
        -------
        tuple of str
            Warnings for the user: sentences about what will be done differently.

        Raises
        ------
        UsageError
            If the cluster cannot be started; the message says what to type instead.
        """

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Start the machines of a cluster and an agent on each.

        It starts all of them or none: if it fails or is cancelled, it removes whatever it has
        started. The cluster is already in the registry, so that leftovers of a killed kernel are
        found: of machines that only the registry can tell, `StartingAgents` is said before.

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
            If a machine cannot be started; the message names it.
        """

    def machine(self, row: Mapping[str, Any]) -> Machine:
        """Return the machine that `Machine.row` described, in this or another kernel."""


def counts_hours(provider: Provider) -> bool:
    """Return whether the hours of a provider's nodes are counted."""
    return getattr(provider, "counts_hours", False)


def takes_interface(provider: Provider) -> bool:
    """Return whether the user can choose the network between a provider's nodes."""
    return hasattr(provider, "interface")


class Machine(Protocol):
    """A machine with an agent.

    Over SSH and on AWS, a machine is a node. On this computer, one machine stands for all nodes,
    unless the user asks for more.
    """

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes that the machine stands for."""

    @property
    def shares_files(self) -> bool:
        """Whether its ranks see the notebook's files at the same paths.

        If so, they import the user's own modules from there; otherwise the modules are sent.
        """

    @property
    def blobs_here(self) -> Path | None:
        """The folder of the node's blobs, if this process may write into it; else ``None``."""

    @property
    def is_answering(self) -> bool:
        """Whether it, or a host on the way, has said something in the last moments.

        A login can take seconds, by a slow network or on a busy machine: who asks how a cluster is
        waits for one that goes on, and not for a machine that is off.
        """

    async def open(self) -> socket.socket:
        """Return a new connection to the agent.

        Raises
        ------
        AgentGone
            If the agent is gone.
        OSError
            If it cannot be reached now.
        """

    async def remove(self) -> None:
        """Kill the agent if it is still there, and remove its files."""

    def row(self) -> dict[str, Any]:
        """Return the data with which to find the machine again, for the registry, as JSON."""

    def with_nodes(self, nodes: Sequence[Node]) -> Machine:
        """Return the same machine, standing for other nodes."""


class StartingAgents(str):
    """Words about agents that are started as soon as whoever is told of them has returned.

    A provider tells of them in a thread: they are written down meanwhile, for whoever has to end
    them if this process is killed.

    Attributes
    ----------
    machines
        The machines that they are on, as far as they are known by then.
    """

    machines: Sequence[Machine] = ()

    @classmethod
    def on(cls, machines: Sequence[Machine]) -> StartingAgents:
        """Return the words for agents on some machines."""
        made = cls(f"starting {format_count(len(machines), 'node')}")
        made.machines = machines
        return made


class AgentGone(OSError):
    """An agent has ended: there is nothing left to connect to.

    Attributes
    ----------
    up_for
        Seconds since its machine was started, if that is known: it may have been started again.
    """

    def __init__(self, text: str = "", up_for: float | None = None) -> None:
        super().__init__(text)
        self.up_for = up_for


class MachineGone(AgentGone):
    """An agent has ended with its machine; the message says why: ``"it was terminated"``."""


class MachineStopped(MachineGone):
    """An agent has ended with its machine, which was turned off: it can be started again."""


class NotLetIn(OSError):
    """There is no way in until the user does something; the text says why, and what to do."""


class Suspended(NotLetIn):
    """A machine stands still, and with it what runs there, until it is resumed."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    Attributes
    ----------
    node
        Its number.
    addr, interface
        The address at which other nodes reach it, and the name of its network interface.
    ranks
        The ranks that it runs.
    accelerators
        Number of its GPUs.
    shared_accelerators
        Whether ranks have to share a GPU.
    gpu
        The name of its GPUs.
    name
        Its name for the user; ``None`` for a process on this computer.
    price
        Dollars per hour; ``None`` if it is free, or the price is not known.
    port
        The port on which its agent listens to other agents; 0 if there are none.
    fingerprint
        Of the certificate that its agent shows to them; empty if there are none.
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
        """Its name for the user."""
        return self.name or (f"node {self.node}" if self.addr.startswith("127.") else self.addr)

    def message(self) -> NodePlace:
        """Return the node as data for messages and the registry."""
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

    def reached_at(self, agent: AgentStarted) -> Node:
        """Return the same node, with the addresses that its agent has told when it started."""
        return replace(
            self,
            addr=agent["addr"],
            interface=agent["interface"],
            port=agent["port"],
            fingerprint=agent["fingerprint"],
        )

    def peer(self) -> AgentAddress:
        """Return the address of its agent for other agents, as data for messages."""
        return {
            "node": self.node,
            "addr": self.addr,
            "port": self.port,
            "fingerprint": self.fingerprint,
        }
