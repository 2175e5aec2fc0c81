"""Who is where in a cluster: as an agent is told it, and as a rank finds it in ``COMPUTE_POOL``."""

from __future__ import annotations

from typing import TypedDict


class AgentAddress(TypedDict):
    """Where other agents reach the agent of a node, and by which certificate they know it."""

    node: int
    addr: str
    port: int
    fingerprint: str


class NodePlace(TypedDict):
    """A node, as `jupyter_sky.providers.base.Node` describes it; the last two are its agent's."""

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
    """The nodes of a cluster, and where its head listens while a process group is formed."""

    cluster: str
    task_id: str
    generation: int
    head_addr: str
    head_port: int
    nodes: list[NodePlace]


class PeerPlace(TypedDict):
    """What a rank is told of each node, its own too."""

    node: int
    addr: str
    ranks: list[int]


class RankPlace(TypedDict):
    """What ``COMPUTE_POOL`` says to a rank, as JSON; `api.instance.InstanceInfo` explains it."""

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
