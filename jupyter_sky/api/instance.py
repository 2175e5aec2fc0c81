"""Where this process stands in its cluster, as the node says it in COMPUTE_POOL."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from functools import lru_cache

from jupyter_sky.errors import SkyError


@dataclass(frozen=True)
class Peer:
    """A node of the cluster: its number, its address, and the ranks on it."""

    node: int
    addr: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class InstanceInfo:
    """The position of this rank in its cluster.

    Attributes
    ----------
    cluster, task_id
        Name of the cluster, and of the run that this rank was started for.
    generation
        Which formation of the group this is: one more each time it had to be formed again.
    node, total_nodes
        Number of this node, from 0, and how many there are.
    rank, world_size
        Number of this rank, from 0, and how many there are in the cluster.
    local_rank, local_world_size
        The same, counted on this node only.
    head_addr, head_port
        Where rank 0 listens while the group is formed.
    accelerators
        Number of accelerators on this node.
    shared_accelerators
        Whether several ranks have to use the same accelerator.
    interface
        The network interface that leads to the head.
    peers
        All nodes, this one too, in the order of their numbers.
    """

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
    peers: tuple[Peer, ...]

    @property
    def is_head(self) -> bool:
        """Whether this is rank 0, whose output a notebook shows."""
        return self.rank == 0


def instance_info() -> InstanceInfo | None:
    """Tell where this process stands in its cluster.

    Returns
    -------
    InstanceInfo or None
        ``None`` outside a cluster, as in the notebook itself.
    """
    topology = os.environ.get("COMPUTE_POOL")
    return _parse(topology) if topology else None


@lru_cache(maxsize=1)
def _parse(topology: str) -> InstanceInfo:
    try:
        values = json.loads(topology)
        peers = tuple(
            Peer(peer["node"], peer["addr"], tuple(peer["ranks"])) for peer in values.pop("peers")
        )
        # A newer node may say more than this version knows.
        names = [each.name for each in fields(InstanceInfo) if each.name != "peers"]
        return InstanceInfo(**{name: values[name] for name in names}, peers=peers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SkyError(
            f"COMPUTE_POOL does not describe a cluster ({error!r}): leave that variable to "
            "jupyter_sky, or unset it here."
        ) from error
