"""The position of this process in its cluster, which a rank finds in ``COMPUTE_POOL``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.topology import PeerPlace, RankPlace


@dataclass(frozen=True)
class Peer:
    """A node of the cluster: its number, its address, and the ranks on it."""

    node: int
    addr: str
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, place: PeerPlace) -> Peer:
        """Return the node that ``COMPUTE_POOL`` describes."""
        return cls(place["node"], place["addr"], tuple(place["ranks"]))


@dataclass(frozen=True)
class InstanceInfo:
    """The position of this rank in its cluster.

    Attributes
    ----------
    cluster, task_id
        Name of the cluster, and of the run that this rank was started for.
    generation
        The number of the group's formation, which grows each time the group is formed again.
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
        All nodes, including this one, in the order of their numbers.
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
    """Return the position of this process in its cluster.

    Returns
    -------
    InstanceInfo or None
        ``None`` outside a cluster, as in the notebook itself.
    """
    text = os.environ.get("COMPUTE_POOL")
    return _parse(text) if text else None


@lru_cache(maxsize=1)
def _parse(text: str) -> InstanceInfo:
    try:
        place: RankPlace = json.loads(text)
        known: dict[str, Any] = dict(place)
        # A newer agent may write more than this version knows.
        values = {each.name: known[each.name] for each in fields(InstanceInfo)}
        return InstanceInfo(**{**values, "peers": tuple(map(Peer.of, place["peers"]))})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SkyError(
            f"COMPUTE_POOL does not describe a cluster ({error!r}): leave that variable to "
            "jupyter_sky, or unset it here."
        ) from error
