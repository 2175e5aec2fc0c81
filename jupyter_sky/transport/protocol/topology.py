"""The topology of a cluster, and the requests that form the process group of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.protocol.messages import NameGroup


class AgentAddress(TypedDict):
    """Where other agents reach the agent of a node, and the fingerprint of its certificate."""

    node: int
    addr: str
    port: int
    fingerprint: str


class NodePlace(TypedDict):
    """A node, as in `jupyter_sky.providers.base.Node`; the last two fields are its agent's."""

    node: int
    addr: str
    interface: str
    ranks: list[int]
    accelerators: int
    shared_accelerators: bool
    gpu: str | None
    name: str | None
    price: float | None
    port: int
    fingerprint: str


class Topology(TypedDict):
    """The nodes of a cluster, and where its head listens while a process group is formed.

    ``members`` tells whether another group has the same nodes and plugins, and ``shares_files``
    whether the nodes see the notebook's files.
    """

    cluster: str
    task_id: str
    generation: int
    head_addr: str
    head_port: int
    nodes: list[NodePlace]
    members: str
    shares_files: bool


class PeerPlace(TypedDict):
    """What a rank is told about each node, including its own."""

    node: int
    addr: str
    ranks: list[int]


class RankPlace(TypedDict):
    """The JSON in ``COMPUTE_POOL``; `api.instance.InstanceInfo` explains it."""

    cluster: str
    task_id: str
    generation: int
    node: int
    total_nodes: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    head_addr: str
    head_port: int
    accelerators: int
    shared_accelerators: bool
    interface: str
    peers: list[PeerPlace]


# Requests to agents


class ReserveRequest(TypedDict):
    """``reserve``: let the head listen for the process group; answered with its ``port``."""

    rank: int
    addr: str


class BeginFormingRequest(TypedDict):
    """``begin_forming``: ask the first node to form a process group; see `FormingTurn`.

    Its generation is at least ``generation``; the agent adds the ``client``.
    """

    generation: int
    client: str


class FormingTurn(TypedDict):
    """The answer: whether it is this notebook's turn to form a group.

    Attributes
    ----------
    is_given
        Whether it is.
    is_left
        Whether the notebook before it has gone without saying that it was done.
    generation
        The generation of the group that it is to form, or that another one forms.
    """

    is_given: bool
    is_left: bool
    generation: int


class EndFormingRequest(TypedDict):
    """``end_forming``: end one's turn; the agent adds the ``client``."""

    client: str


class LeftRequest(TypedDict):
    """``left``: ask whether ranks of a run only wait for a notebook that is gone."""

    run: str


class LeftAnswer(TypedDict):
    """The answer, for the ranks of this node."""

    is_left: bool


class FormRequest(TypedDict):
    """``form``: enter a process group.

    Attributes
    ----------
    ranks
        The ranks that enter it; those of other nodes are told by their own agents.
    life
        The hooks of plugins, pickled.
    names
        The names that the hooks need.
    """

    ranks: list[int]
    topology: Topology
    life: Packed
    names: list[NameGroup]


class AbandonRequest(TypedDict):
    """``abandon``: take ranks out of a formation that some of them will not complete.

    The answer comes once no rank is in it any more.

    Attributes
    ----------
    patience
        Seconds that ranks have left to complete it.
    """

    patience: float


# Agents that reach each other


class ReachRequest(TypedDict):
    """``reach``: connect to other agents; answered with ``failed``, as for `PassOnRequest`."""

    peers: list[AgentAddress]


class EndPeersRequest(TypedDict):
    """``end_peers``: tell other agents that they were ended; answered with ``failed``, as above.

    Without ``peers`` it only asks for a sign of life.
    """

    peers: list[AgentAddress]


class ListenRequest(TypedDict):
    """``listen_on_test_port``: listen for ``callers`` connections; answered with the ``port``."""

    addr: str
    callers: int


class ConnectRequest(TypedDict):
    """``connect_to_test_ports``: connect to other nodes; answered with ``failed``, as above.

    Attributes
    ----------
    listeners
        Node, address and port of each listener.
    """

    listeners: list[tuple[int, str, int]]


class AddPeersRequest(TypedDict):
    """``add_peers``: trust agents that join the cluster.

    If the agent was alone so far, the answer has the ``addr``, ``interface`` and ``port`` at which
    it listens to others from now on, and the ``fingerprint`` of its certificate.

    Attributes
    ----------
    authority
        The certificate of the authority that signed theirs, in PEM.
    credentials
        For an agent that was alone so far: its own credentials.
    peer
        The address of one of them.
    peers
        Their fingerprints.
    """

    authority: str
    credentials: Mapping[str, Any] | None
    peer: str
    peers: list[str]
