"""What a provider implements besides `jupyter_sky.providers.base` if nodes can join and leave.

`RunningCluster` is what agents are started for, and has what is the same for all providers. A new
cluster is one without machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from jupyter_sky.providers.base import Machine, Node, Progress, Provider
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, RankSpec
from jupyter_sky.transport.templates.later import wanted_soon


@runtime_checkable
class Scalable(Provider, Protocol):
    """A provider whose nodes can join and leave a running cluster."""

    async def add_nodes(self, running: RunningCluster, progress: Progress) -> AddedNodes:
        """Start the missing nodes of a cluster: all or none, like `launch`.

        Existing agents are not changed: the caller tells them about the new ones.
        """

    async def release_machines(self, machines: Sequence[Machine]) -> None:
        """Release machines that have left their cluster and whose agents have ended.

        Providers whose machines belong to the user have nothing to do here.

        Raises
        ------
        SkyError
            If one may still cost something; the registry then keeps it.
        """


@runtime_checkable
class Limited(Scalable, Protocol):
    """A provider whose machines end by themselves once their cluster has cost what it may."""

    async def share_rest(self, staying: Sequence[Machine], gone: Sequence[Machine]) -> None:
        """Let machines end later, as what may be spent is not shared with others any more.

        Whoever is not reached ends as early as before.
        """


@dataclass(frozen=True)
class RunningCluster:
    """A cluster for which a provider should start agents: a running one, or a new one.

    Attributes
    ----------
    spec
        The target specification: ``spec.nodes`` includes the new nodes.
    identity
        The cluster's id.
    preload
        Modules that each node imports.
    machines
        The machines that stay; none of a new cluster.
    lost
        Lost nodes to replace by others with the same numbers and ranks.
    authority
        Certificates, in PEM, of the authorities that have signed for its agents so far; empty for a
        single agent.
    """

    spec: ClusterSpec
    identity: str
    preload: Sequence[str]
    machines: Sequence[Machine] = ()
    lost: Sequence[Node] = ()
    authority: str = ""

    @property
    def nodes(self) -> list[Node]:
        """The nodes that stay."""
        return [node for machine in self.machines for node in machine.nodes]

    @property
    def new_numbers(self) -> list[int]:
        """The numbers of the nodes to add."""
        there = {node.node for node in self.nodes}
        return [number for number in range(self.spec.nodes) if number not in there]

    def new_ranks(self, counts: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the ranks of each node to add: those of a lost one, or the next.

        Parameters
        ----------
        counts
            How many each of them has if it takes the place of no other.
        """
        lost = {node.node: node.ranks for node in self.lost}
        first = sum(len(node.ranks) for node in [*self.nodes, *self.lost])
        found = []
        for number, count in zip(self.new_numbers, counts, strict=True):
            ranks = lost.get(number)
            if ranks is None:
                ranks = tuple(range(first, first + count))
                first += count
            found.append(ranks)
        return found

    def issue_credentials(
        self, names: Sequence[str]
    ) -> tuple[list[Credentials | None], Credentials | None]:
        """Issue the credentials of agents to start; a new one that is alone gets none.

        Parameters
        ----------
        names
            What each of them is called.

        Returns
        -------
        list of Credentials
            Theirs, in the same order.
        Credentials
            As in `AddedNodes.credentials`.
        """
        if self.machines:
            first, *new = issue_credentials([self.nodes[0].host, *names])
            known = [node.fingerprint for node in self.nodes if node.fingerprint]
            return [each.trusting(self.authority, known) for each in new], first
        if len(names) > 1:
            return [*issue_credentials(names)], None
        return [None for _ in names], None

    def agent_spec(self, grace: float, credentials: Credentials | None) -> AgentSpec:
        """Return what all agents of the cluster have to know; the place of each is added to it."""
        return AgentSpec(
            cluster=self.spec.name,
            id=self.identity,
            socket="",
            blobs="",
            ranks=(),
            cwd="",
            credentials=asdict(credentials) if credentials else None,
            grace=grace,
            idle_timeout=self.spec.idle_timeout,
            unattended=self.spec.unattended,
            preload=tuple(self.preload),
            soon=wanted_soon(self.preload),
        )


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
        The ranks for agents of existing machines to start.
    credentials
        For an agent that was the only one so far: its credentials from now on.
    """

    machines: Sequence[Machine]
    existing: Sequence[Machine]
    ranks: Sequence[RankSpec] = ()
    credentials: Credentials | None = None

    @property
    def authority(self) -> str:
        """The certificate, in PEM, of the authority that has signed for the new agents."""
        return self.credentials.authority if self.credentials else ""
