"""The topology of a cluster, as sent to agents and as ranks find it in ``COMPUTE_POOL``."""

from __future__ import annotations

from typing import TypedDict


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
    """The nodes of a cluster, and where its head listens while a process group is formed."""

    cluster: str
    task_id: str
    generation: int
    head_addr: str
    head_port: int
    nodes: list[NodePlace]


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
