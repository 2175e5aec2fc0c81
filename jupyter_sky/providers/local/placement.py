"""Assigns ranks to local nodes, and the GPUs of this computer to ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.providers.base import Node
from jupyter_sky.providers.local.gpus import GPU
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.agent_spec import RankSpec

_LOOPBACK = "127.0.0.1"


def place_nodes(spec: ClusterSpec, gpus: Sequence[GPU]) -> list[Node]:
    """Return the nodes of a cluster; ranks share GPUs only if necessary."""
    wanted = spec.wanted_gpus
    each = wanted.count if wanted else len(gpus) // spec.nodes
    per_node = spec.procs_per_node or max(1, each)
    shared = bool(gpus) and each < per_node
    nodes = []
    for number in range(spec.nodes):
        ranks = tuple(range(number * per_node, (number + 1) * per_node))
        count = each or min(1, len(gpus))
        name = gpus[0].name if gpus else None
        nodes.append(Node(number, _LOOPBACK, "lo", ranks, count, shared, name))
    return nodes


def place_new_nodes(running: RunningCluster, gpus: Sequence[GPU]) -> tuple[list[Node], list[Node]]:
    """Return the existing nodes of a cluster, and the new ones, which are like them.

    If that takes more GPUs than there are, all ranks share them from now on, since a process group
    is of one kind.
    """
    there, numbers = running.nodes, running.new_numbers
    like = there[0]
    each = running.new_ranks(len(like.ranks) for _ in numbers)
    new = [
        replace(like, node=number, ranks=ranks, port=0, fingerprint="")
        for number, ranks in zip(numbers, each, strict=True)
    ]
    enough = len(gpus) >= like.accelerators * (len(there) + len(new))
    shared = bool(gpus) and (like.shared_accelerators or not enough)
    return (
        [replace(node, shared_accelerators=shared) for node in there],
        [replace(node, shared_accelerators=shared) for node in new],
    )


def rank_specs(nodes: Sequence[Node], gpus: Sequence[GPU]) -> list[RankSpec]:
    """Return the ranks of nodes, each with the GPU that it may use."""
    return [RankSpec(rank, _visible(node, rank, gpus)) for node in nodes for rank in node.ranks]


def _visible(node: Node, rank: int, gpus: Sequence[GPU]) -> dict[str, str]:
    if not gpus:
        return {}
    first = node.node * node.accelerators
    index = rank if node.shared_accelerators else first + node.ranks.index(rank)
    return gpus[index % len(gpus)].variables()
